"""The kernels in Gluon, run on the CPU by `gluon_on_cpu`: no GPU is needed, and no layout is tested."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cs336_systems.attention.flash_plain import Options
from cs336_systems.attention.tile_choices import HOPPER_BACKWARD, HOPPER_FORWARD, suits_tma
from tests.attention.gate import Shape, exact_and_eager, make_inputs
from tests.attention.gluon_on_cpu import launchers_on_cpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="launches its plain kernels in Triton's interpreter")

# Both warp groups of keys with and without a key, lengths that tiles divide and not, more of either, grouped queries.
SHAPES = (
    Shape((1, 2), 192, 192, 64),
    Shape((2, 1), 333, 333, 64),
    Shape((1, 1), 130, 333, 128),
    Shape((1, 1), 333, 200, 128),
    Shape((1, 4), 150, 100, 64, heads_per_kv_head=2),
    Shape((1, 2), 130, 257, 128, "heads_inside", heads_per_kv_head=2),
)
MORE_SHAPES = (
    Shape((1, 2), 512, 512, 64),
    Shape((1, 2), 512, 512, 128),
    Shape((1, 1), 64, 500, 64),
    Shape((1, 1), 500, 64, 64),
    Shape((2, 3), 257, 129, 128, "heads_inside"),
    Shape((2, 6), 200, 200, 64, heads_per_kv_head=3),
    Shape((1, 1), 129, 1, 128),
    Shape((1, 1), 1, 129, 64),
    Shape((1, 8), 257, 257, 128, heads_per_kv_head=4),
)


@pytest.fixture(scope="module")
def flash_hopper() -> Iterator[Any]:
    with launchers_on_cpu() as (module, _):
        yield module


def run(flash_hopper: Any, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, is_causal: bool) -> dict[str, Tensor]:
    d = q.shape[-1]
    options = Options(is_causal, d**-0.5)
    assert all(map(suits_tma, (q, k, v)))
    with torch.no_grad():
        out, lse = flash_hopper.plan_forward(q, k, v, options, HOPPER_FORWARD[d])(q, k, v, None)
        backward = flash_hopper.plan_backward(q, k, v, out, grad_out, options, HOPPER_BACKWARD[d])
        grads = backward(q, k, v, out, lse, grad_out, None)
    return dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "shape", [*SHAPES, *(pytest.param(one, marks=pytest.mark.slow) for one in MORE_SHAPES)], ids=str
)
def test_the_hopper_kernels_compute_attention(flash_hopper: Any, shape: Shape, is_causal: bool) -> None:
    """In float32, all of whose products are exact here: no rounding hides a wrong mask."""
    q, k, v, grad_out = make_inputs(shape, torch.float32)
    exact, _ = exact_and_eager(q, k, v, grad_out, is_causal)
    for name, value in run(flash_hopper, q, k, v, grad_out, is_causal).items():
        error = (value.double() - exact[name]).abs().max().item()
        assert error < 2e-5, f"{name}: error {error:.3g}"  # a NaN fails too


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["q", "k", "v", "grad_out"])
def test_what_is_not_finite_goes_where_it_goes_in_eager(flash_hopper: Any, where: str, value: float) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 1), 150, 150, 64), torch.float32)
    with torch.no_grad():
        {"q": q, "k": k, "v": v, "grad_out": grad_out}[where][0, 0, 70, 3] = value
    _, eager = exact_and_eager(q, k, v, grad_out, False)
    got = run(flash_hopper, q, k, v, grad_out, False)
    for name in ("out", "dq", "dk", "dv"):
        assert torch.equal(got[name].isfinite(), eager[name].isfinite()), name


@pytest.mark.parametrize("hidden", [slice(0, 140), slice(10, 150)])
def test_scores_of_minus_infinity_count_for_nothing(flash_hopper: Any, hidden: slice) -> None:
    """A whole tile of them too, and the queries beyond the end against an infinite key."""
    q, k, v, grad_out = make_inputs(Shape((1, 1), 150, 150, 64), torch.float32)
    with torch.no_grad():
        q[..., 3] = 1
        k[:, :, hidden, 3] = float("-inf")
    _, eager = exact_and_eager(q, k, v, grad_out, False)
    got = run(flash_hopper, q, k, v, grad_out, False)
    torch.testing.assert_close(got["out"], eager["out"])
    for name in ("out", "dq", "dk", "dv"):
        assert torch.equal(got[name].isfinite(), eager[name].isfinite()), name


def test_a_gradient_without_strides_is_copied(flash_hopper: Any) -> None:
    q, k, v, _ = make_inputs(Shape((1, 2), 130, 130, 64), torch.float32)
    ones = torch.ones(()).expand(q.shape)
    got = run(flash_hopper, q, k, v, ones, True)
    expected = run(flash_hopper, q, k, v, ones.contiguous(), True)
    torch.testing.assert_close(got, expected)


def test_a_gradient_in_one_piece_at_an_odd_address_is_copied(flash_hopper: Any) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 2), 130, 130, 64), torch.float32)
    odd = torch.empty(grad_out.numel() + 1)[1:].view_as(grad_out).copy_(grad_out)
    assert odd.is_contiguous() and not suits_tma(odd)
    got = run(flash_hopper, q, k, v, odd, True)
    torch.testing.assert_close(got, run(flash_hopper, q, k, v, grad_out, True))
