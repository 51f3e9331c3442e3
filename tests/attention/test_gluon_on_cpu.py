"""The kernels in Gluon, run on the CPU by `gluon_on_cpu`: no GPU is needed, and no layout is tested."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cs336_systems.attention import gpu
from cs336_systems.attention.hopper import suits_tma
from cs336_systems.attention.hopper_tables import (
    HOPPER_BACKWARD,
    HOPPER_FLOAT32,
    HOPPER_FORWARD,
    HOPPER_FORWARD_FEW,
    HOPPER_FORWARD_LONG,
    HOPPER_FORWARD_MANY,
    HOPPER_FORWARD_PING_PONG,
)
from cs336_systems.attention.request import Request
from cs336_systems.attention.tiles import padded_head_dim
from tests.attention.gate import Shape, assert_as_exact_as_eager, assert_within_gate, exact_and_eager, make_inputs
from tests.attention.gluon_on_cpu import launchers_on_cpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="launches its plain kernels in Triton's interpreter")

# Both warp groups of keys with and without a key, lengths that tiles divide and not, more of either, grouped queries.
SHAPES = (
    Shape((1, 1), 192, 192, 64),
    Shape((1, 1), 333, 333, 64),
    Shape((1, 1), 70, 201, 128),
    Shape((1, 1), 201, 70, 128),
    Shape((1, 1), 130, 333, 128),
    Shape((1, 1), 333, 200, 80),
    Shape((1, 4), 130, 67, 96, heads_per_kv_head=2),
    Shape((2, 1), 140, 140, 40),
    Shape((1, 2), 140, 201, 16, heads_per_kv_head=2),
    Shape((1, 1), 201, 140, 24),
    Shape((2, 2), 70, 70, 112, "heads_inside"),
    Shape((1, 2), 130, 257, 128, "heads_inside", heads_per_kv_head=2),
)
MORE_SHAPES = (
    Shape((1, 2), 192, 192, 64),
    Shape((2, 1), 333, 333, 64),
    Shape((1, 4), 150, 100, 96, heads_per_kv_head=2),
    Shape((2, 2), 130, 130, 112, "heads_inside"),
    Shape((1, 2), 512, 512, 64),
    Shape((1, 2), 512, 512, 128),
    Shape((1, 1), 64, 500, 64),
    Shape((1, 1), 500, 64, 64),
    Shape((2, 3), 257, 129, 128, "heads_inside"),
    Shape((2, 6), 200, 200, 64, heads_per_kv_head=3),
    Shape((2, 6), 200, 200, 64, "heads_inside", heads_per_kv_head=3),
    Shape((1, 8), 257, 257, 128, heads_per_kv_head=4),
)

ONE_QUERY, ONE_KEY = Shape((1, 1), 1, 129, 64), Shape((1, 1), 129, 1, 128)

Run = Callable[[Tensor, Tensor, Tensor, Tensor, bool], dict[str, Tensor]]


@pytest.fixture(scope="module")
def launchers() -> Iterator[Any]:
    with launchers_on_cpu() as gluon_plans:
        yield gluon_plans


@pytest.fixture
def in_pieces(launchers: Any) -> Callable[[int], Run]:
    """`run` of the kernels over so many pieces of float32."""
    choices = {pieces: {d: HOPPER_FLOAT32[d, pieces] for d in (16, 32, 64, 128)} for pieces in (2, 3)}
    plans = launchers.pieces_forward, launchers.pieces_backward
    return lambda pieces: partial(run, plans, choices[pieces], choices[pieces])


@pytest.fixture(params=["as they are", "in pieces"])
def of_either(request: pytest.FixtureRequest, launchers: Any, in_pieces: Callable[[int], Run]) -> Run:
    """`run` of the kernels that multiply operands as they are, exact in float32 here, and of those over pieces."""
    if request.param == "in pieces":
        return in_pieces(3)
    forwards, backwards = ({16: table[64], 32: table[64]} | table for table in (HOPPER_FORWARD, HOPPER_BACKWARD))
    return partial(run, (launchers.gluon_forward, launchers.gluon_backward), forwards, backwards)


def run(
    plans: tuple[Any, Any],
    forward_choices: dict[int, Any],
    backward_choices: dict[int, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    is_causal: bool,
) -> dict[str, Tensor]:
    d = padded_head_dim(q)
    request, (plan_forward, plan_backward) = Request(is_causal, q.shape[-1] ** -0.5), plans
    assert all(map(suits_tma, (q, k, v)))
    with torch.no_grad():
        out, lse = plan_forward(request, q, k, v, forward_choices[d])(q, k, v, None)
        backward = plan_backward(request, q, k, v, out, grad_out, backward_choices[d])
        grads = backward(q, k, v, out, lse, grad_out, None)
    return dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))


def gate_cases() -> list[Any]:
    """Every other shape is causal, and the others are full; all shapes with either mask are slow."""
    return [
        pytest.param(
            shape,
            is_causal,
            marks=[] if i < len(SHAPES) and is_causal == bool(i % 2) else [pytest.mark.slow],
            id=f"{shape}-{'causal' if is_causal else 'full'}",
        )
        for i, shape in enumerate((*SHAPES, *MORE_SHAPES))
        for is_causal in (False, True)
    ]


@pytest.mark.parametrize(("shape", "is_causal"), gate_cases())
def test_the_kernels_are_as_exact_as_eager(of_either: Run, shape: Shape, is_causal: bool) -> None:
    """In float32: no rounding hides a wrong mask."""
    assert_as_exact_as_eager(of_either, shape, torch.float32, is_causal)


@pytest.mark.parametrize(
    ("choices", "programs"),
    [
        (HOPPER_FORWARD, 1),
        (HOPPER_FORWARD, 5),
        (HOPPER_FORWARD_MANY, 1),
        (HOPPER_FORWARD_MANY, 5),
        (HOPPER_FORWARD_LONG, 0),
        ({64: HOPPER_FORWARD_FEW[64, True][3]}, 0),
        ({64: HOPPER_FORWARD_PING_PONG[128]}, 1),
        ({64: HOPPER_FORWARD_PING_PONG[128]}, 5),
    ],
    ids=["one for few", "few", "one for many", "many", "one for each tile", "in pairs", "one in turns", "in turns"],
)
def test_programs_share_the_tiles_of_all_heads(
    launchers: Any, choices: dict[int, Any], programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two heads at once of six, and of tiles no multiple of the programs."""
    monkeypatch.setattr(launchers, "MAX_PROGRAMS", programs)
    q, k, v, grad_out = make_inputs(Shape((2, 3), 330, 330, 64), torch.float32)
    monkeypatch.setattr(gpu, "l2_bytes", lambda device: 8 * k[0, 0].numel() * k.element_size())
    exact, eager = exact_and_eager(q, k, v, grad_out, True)
    request = Request(is_causal=True, scale=64**-0.5)
    with torch.no_grad():
        out, lse = launchers.gluon_forward(request, q, k, v, choices[64])(q, k, v, None)
    exact, eager = ({name: values[name] for name in ("out", "lse")} for values in (exact, eager))
    assert_within_gate({"out": out, "lse": lse}, exact, eager, torch.float32)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("consumers", [1, 2])
def test_programs_share_the_tiles_in_pieces(
    launchers: Any, consumers: int, is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "MAX_PROGRAMS", 5)
    q, k, v, grad_out = make_inputs(Shape((1, 2), 330, 200, 64), torch.float32)
    exact, eager = exact_and_eager(q, k, v, grad_out, is_causal)
    choice = HOPPER_FLOAT32[64, 3]._replace(consumers=consumers)
    with torch.no_grad():
        out, lse = launchers.pieces_forward(Request(is_causal, 64**-0.5), q, k, v, choice)(q, k, v, None)
    exact, eager = ({name: values[name] for name in ("out", "lse")} for values in (exact, eager))
    assert_within_gate({"out": out, "lse": lse}, exact, eager, torch.float32)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("shape", "splits", "heads_at_once"),
    [
        (Shape((1, 6), 70, 140, 128, heads_per_kv_head=3), 3, 0),
        (Shape((1, 5), 140, 70, 80, "heads_inside", heads_per_kv_head=5), 5, 2),
        (Shape((2, 4), 140, 140, 40, heads_per_kv_head=4), 2, 3),
        (Shape((1, 2), 300, 140, 128, heads_per_kv_head=2), 4, 0),
        (Shape((1, 1), 200, 260, 64), 3, 0),  # of the second key tile, if causal, two programs visit nothing
    ],
    ids=str,
)
def test_programs_share_the_visits_of_a_key_tile(
    launchers: Any, shape: Shape, splits: int, heads_at_once: int, is_causal: bool
) -> None:
    plans = launchers.gluon_forward, launchers.gluon_backward
    choices = {d: how._replace(splits=splits, heads_at_once=heads_at_once) for d, how in HOPPER_BACKWARD.items()}
    assert_as_exact_as_eager(partial(run, plans, HOPPER_FORWARD, choices), shape, torch.float32, is_causal)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_programs_share_the_visits_of_a_key_tile_of_pieces(launchers: Any, is_causal: bool) -> None:
    """Of the last key tile, if causal, only two of three programs visit any queries."""
    plans, how = (launchers.pieces_forward, launchers.pieces_backward), HOPPER_FLOAT32[64, 3]
    shared = partial(run, plans, {64: how}, {64: how._replace(splits=3)})
    assert_as_exact_as_eager(shared, Shape((1, 2), 130, 140, 64, heads_per_kv_head=2), torch.float32, is_causal)


@pytest.mark.parametrize("d", [72, 128])
@pytest.mark.parametrize("ds_stages", [1, 2])
def test_each_number_of_slots_of_ds_in_a_wide_backward_is_exact(launchers: Any, ds_stages: int, d: int) -> None:
    """Over five tiles of queries, so that each ring goes round twice; of the last program the second half is no key."""
    plans = launchers.gluon_forward, launchers.gluon_backward
    choices = {128: HOPPER_BACKWARD[128]._replace(ds_stages=ds_stages)}
    wide = partial(run, plans, HOPPER_FORWARD, choices)
    assert_as_exact_as_eager(wide, Shape((1, 1), 300, 180, d), torch.float32, True)


def test_more_heads_share_a_key_head_than_it_has_bytes(launchers: Any) -> None:
    q, k = (torch.empty(1, heads, 128, 40, dtype=torch.bfloat16, device="meta") for heads in (30000, 1))
    assert launchers._forward_sizes(Request(is_causal=True, scale=0.1), q, k) == (128, 128, 30000, 30000, 1)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", [ONE_QUERY, ONE_KEY], ids=str)
def test_one_query_or_one_key_is_off_by_rounding_alone(of_either: Run, shape: Shape, is_causal: bool) -> None:
    """Where a query sees one key its gradients are 0: what is left of dp - delta is what eager rounds away too."""
    q, k, v, grad_out = make_inputs(shape, torch.float32)
    exact, _ = exact_and_eager(q, k, v, grad_out, is_causal)
    for name, value in of_either(q, k, v, grad_out, is_causal).items():
        error = (value.double() - exact[name]).abs().max().item()
        assert error < 2e-5, f"{name}: error {error:.3g}"  # a NaN fails too


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_pieces_of_one_query_are_as_exact_as_eager(in_pieces: Callable[[int], Run], is_causal: bool) -> None:
    assert_as_exact_as_eager(in_pieces(3), ONE_QUERY, torch.float32, is_causal)


@pytest.mark.parametrize("d", [64, 128])
def test_two_pieces_hold_sixteen_bits(in_pieces: Callable[[int], Run], d: int) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 2), 130, 130, d), torch.float32)
    exact, _ = exact_and_eager(q, k, v, grad_out, True)
    for name, value in in_pieces(2)(q, k, v, grad_out, True).items():
        error = (value.double() - exact[name]).abs().max().item()
        assert 2**-22 < error < 2**-13, f"{name}: error {error:.3g}"  # TF32's 10 bits give 2^-9


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["q", "k", "v", "grad_out"])
def test_what_is_not_finite_goes_where_it_goes_in_eager(of_either: Run, where: str, value: float) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 1), 150, 150, 64), torch.float32)
    with torch.no_grad():
        {"q": q, "k": k, "v": v, "grad_out": grad_out}[where][0, 0, 70, 3] = value
    _, eager = exact_and_eager(q, k, v, grad_out, False)
    got = of_either(q, k, v, grad_out, False)
    for name in ("out", "dq", "dk", "dv"):
        assert torch.equal(got[name].isfinite(), eager[name].isfinite()), name


@pytest.mark.parametrize("query", [1.0, 1.1])
@pytest.mark.parametrize("hidden", [slice(0, 140), slice(10, 150)])
def test_scores_of_minus_infinity_count_for_nothing(of_either: Run, hidden: slice, query: float) -> None:
    """A whole tile of them too, and the queries beyond the end against an infinite key.

    Whatever the infinity makes of a query's smaller pieces: 1 has none, and 1.1 a negative one.
    """
    q, k, v, grad_out = make_inputs(Shape((1, 1), 150, 150, 64), torch.float32)
    with torch.no_grad():
        q[..., 3] = query
        k[:, :, hidden, 3] = float("-inf")
    _, eager = exact_and_eager(q, k, v, grad_out, False)
    got = of_either(q, k, v, grad_out, False)
    torch.testing.assert_close(got["out"], eager["out"])
    for name in ("out", "dq", "dk", "dv"):
        assert torch.equal(got[name].isfinite(), eager[name].isfinite()), name


@pytest.mark.parametrize("layout", ["expanded", "an odd address"])
def test_a_gradient_may_lie_anywhere(of_either: Run, layout: str) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 2), 130, 130, 64), torch.float32)
    if layout == "expanded":
        grad_out = torch.ones_like(q)
        moved = torch.ones(1, 1, *q.shape[2:]).expand(q.shape)
    else:
        moved = torch.empty(grad_out.numel() + 1)[1:].view_as(grad_out).copy_(grad_out)
        assert moved.is_contiguous() and not suits_tma(moved)
    got = of_either(q, k, v, moved, True)
    torch.testing.assert_close(got, of_either(q, k, v, grad_out, True))
