"""The kernels in Gluon over pieces of float32, run on the CPU by `gluon_on_cpu`: their arithmetic too, but for sums."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cs336_systems.attention.flash_plain import Options
from cs336_systems.attention.tile_choices import HOPPER_FLOAT32
from tests.attention.gate import Shape, assert_within_gate, exact_and_eager, make_inputs
from tests.attention.gluon_on_cpu import launchers_on_cpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="launches its plain kernels in Triton's interpreter")

SHAPES = (
    Shape((1, 2), 192, 192, 64),
    Shape((1, 1), 70, 201, 128),
    Shape((1, 1), 201, 70, 128),
    Shape((1, 4), 150, 100, 64, heads_per_kv_head=2),
    Shape((2, 2), 130, 130, 128, "heads_inside"),
)
MORE_SHAPES = (
    Shape((1, 2), 512, 512, 128),
    Shape((2, 1), 333, 333, 64),
    Shape((1, 1), 64, 500, 64),
    Shape((1, 1), 500, 64, 64),
    Shape((2, 6), 200, 200, 64, "heads_inside", 3),
    Shape((1, 1), 1, 129, 64),
)


@pytest.fixture(scope="module")
def flash_float32() -> Iterator[Any]:
    with launchers_on_cpu() as (_, module):
        yield module


def run(
    module: Any, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, is_causal: bool, pieces: int = 3
) -> dict[str, Tensor]:
    options, choice = Options(is_causal, q.shape[-1] ** -0.5), HOPPER_FLOAT32[q.shape[-1], pieces]
    with torch.no_grad():
        out, lse = module.plan_forward(q, k, v, options, choice)(q, k, v, None)
        backward = module.plan_backward(q, k, v, out, grad_out, options, choice)
        grads = backward(q, k, v, out, lse, grad_out, None)
    return dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "shape", [*SHAPES, *(pytest.param(one, marks=pytest.mark.slow) for one in MORE_SHAPES)], ids=str
)
def test_three_pieces_are_as_exact_as_eager(flash_float32: Any, shape: Shape, is_causal: bool) -> None:
    q, k, v, grad_out = make_inputs(shape, torch.float32)
    exact, eager = exact_and_eager(q, k, v, grad_out, is_causal)
    assert_within_gate(run(flash_float32, q, k, v, grad_out, is_causal), exact, eager, torch.float32)


@pytest.mark.parametrize("d", [64, 128])
def test_two_pieces_hold_sixteen_bits(flash_float32: Any, d: int) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 2), 130, 130, d), torch.float32)
    exact, _ = exact_and_eager(q, k, v, grad_out, True)
    for name, value in run(flash_float32, q, k, v, grad_out, True, pieces=2).items():
        error = (value.double() - exact[name]).abs().max().item()
        assert 2**-22 < error < 2**-13, f"{name}: error {error:.3g}"  # TF32's 10 bits give 2^-9


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["q", "k", "v", "grad_out"])
def test_what_is_not_finite_goes_where_it_goes_in_eager(flash_float32: Any, where: str, value: float) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 1), 150, 150, 64), torch.float32)
    with torch.no_grad():
        {"q": q, "k": k, "v": v, "grad_out": grad_out}[where][0, 0, 70, 3] = value
    _, eager = exact_and_eager(q, k, v, grad_out, False)
    got = run(flash_float32, q, k, v, grad_out, False)
    for name in ("out", "dq", "dk", "dv"):
        assert torch.equal(got[name].isfinite(), eager[name].isfinite()), name


@pytest.mark.parametrize("query", [1.0, 1.1])
@pytest.mark.parametrize("hidden", [slice(0, 140), slice(10, 150)])
def test_scores_of_minus_infinity_count_for_nothing(flash_float32: Any, hidden: slice, query: float) -> None:
    """Whatever the infinity makes of a query's smaller pieces: 1 has none, and 1.1 a negative one."""
    q, k, v, grad_out = make_inputs(Shape((1, 1), 150, 150, 64), torch.float32)
    with torch.no_grad():
        q[..., 3] = query
        k[:, :, hidden, 3] = float("-inf")
    _, eager = exact_and_eager(q, k, v, grad_out, False)
    got = run(flash_float32, q, k, v, grad_out, False)
    torch.testing.assert_close(got["out"], eager["out"])
    for name in ("out", "dq", "dk", "dv"):
        assert torch.equal(got[name].isfinite(), eager[name].isfinite()), name


@pytest.mark.parametrize("layout", ["expanded", "an odd address"])
def test_a_gradient_may_lie_anywhere(flash_float32: Any, layout: str) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 2), 130, 130, 64), torch.float32)
    if layout == "expanded":
        moved = torch.ones(1, 1, *q.shape[2:]).expand(q.shape)
        grad_out = torch.ones_like(q)
    else:
        moved = torch.empty(grad_out.numel() + 1)[1:].view_as(grad_out).copy_(grad_out)
    got = run(flash_float32, q, k, v, moved, True)
    torch.testing.assert_close(got, run(flash_float32, q, k, v, grad_out, True))
