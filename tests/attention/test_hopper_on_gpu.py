"""The kernels in Gluon on the GPU that they are for: against float64, in graphs, on streams, and what they allocate."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cs336_systems.attention import gpu, hopper
from cs336_systems.attention.api import flash_attention
from cs336_systems.attention.flash_triton import FlashAttentionTriton
from cs336_systems.attention.gpu import runs_gluon
from tests.attention.gate import (
    Shape,
    assert_as_exact_as_eager,
    assert_within_gate,
    exact_and_eager,
    make_inputs,
    run_flash,
)

HERE = torch.device("cuda", 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() and runs_gluon(HERE)), reason="needs compute capability 9.0"),
]

FEW = hopper.HOPPER_FORWARD_FEW
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = (
    *(Shape((2, 2), n, n, d) for n in (128, 129, 191, 192, 193, 255, 257, 333, 512, 1000) for d in (64, 128)),
    *(Shape((1, 2), 333, 200, d) for d in (64, 128)),
    *(Shape((1, 2), 200, 333, d) for d in (64, 128)),
    *(Shape((1, 1), 128, 1000, d) for d in (64, 128)),
    *(Shape((1, 1), 1000, 128, d) for d in (64, 128)),
    *(Shape((2, 4), 257, 257, d, "heads_inside") for d in (64, 128)),
    *(Shape((2, 6), 300, 300, d, "heads_inside", 3) for d in (64, 128)),
    *(Shape((1, 8), 130, 400, d, heads_per_kv_head=8) for d in (64, 128)),
    *(Shape((2, 5), 400, 130, d, "heads_inside", 5) for d in (40, 80, 128)),
    *(Shape((1, 16), 1000, 1000, d, heads_per_kv_head=8) for d in (64, 96, 128)),
    *(Shape((2, 2), n, 333, d) for n in (128, 333, 1000) for d in (16, 24, 32)),
    Shape((3,), 333, 333, 64),
    Shape((2, 1, 3), 140, 140, 128),
)


@pytest.fixture
def everywhere() -> Iterator[list[str]]:
    """Take Gluon kernels from HOPPER_ROWS on, however few the heads; note whether forward or backward ran."""
    from cs336_systems.attention import gluon_plans

    launched: list[str] = []

    def noting(name: str, function: str) -> Callable[..., Any]:
        make_plan = getattr(gluon_plans, function)

        def make_noted(*arguments: Any) -> Any:
            plan = make_plan(*arguments)

            def noted(*tensors: Any) -> Any:
                launched.append(name)
                return plan(*tensors)

            return noted

        return make_noted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper, "HOPPER_MIN_KEYS", 0)
        patch.setattr(hopper, "HOPPER_MIN_ODD_KEYS", 0)
        patch.setattr(hopper, "HOPPER_FORWARD_FEW", {entry: {} for entry in hopper.HOPPER_FORWARD_FEW})
        patch.setattr(hopper, "_splits_keys", lambda request, q, k: False)
        patch.setattr(hopper, "HOPPER_FLOAT32_SHORT", {})
        patch.setattr(hopper, "HOPPER_FLOAT32_PLAIN", {})
        patch.setattr(hopper, "tiles_at_once", lambda q, k: None)
        patch.setattr(hopper, "HOPPER_FLOAT32_MIN_VISITED", 0)
        patch.setattr(hopper, "HOPPER_NARROW_HEAD_DIM", 0)
        for kind, name in itertools.product(("gluon", "pieces"), ("forward", "backward")):
            patch.setattr(gluon_plans, f"{kind}_{name}", noting(name, f"{kind}_{name}"))
        yield launched


def gradients(out: Tensor, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, (q, k, v), grad_out)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_they_are_as_exact_as_eager(everywhere: list[str], shape: Shape, dtype: torch.dtype, is_causal: bool) -> None:
    assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), shape, dtype, is_causal)
    assert everywhere == ["forward", "backward"]


@pytest.mark.parametrize(("entry", "most"), [(entry, most) for entry, choices in FEW.items() for most in choices])
@pytest.mark.parametrize("heads", [1, 7, 40, 100])  # tiles of one to several programs a multiprocessor
def test_programs_of_one_warp_group_are_as_exact_as_eager(
    everywhere: list[str], entry: tuple[int, bool], most: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = FEW[entry][most]
    monkeypatch.setitem(hopper.HOPPER_FORWARD_FEW, entry, {2**20: choice})
    monkeypatch.setattr(hopper, "HOPPER_MANY", 2**20)
    d, is_causal = entry
    for keys in (512, 700):
        shape = Shape((1, heads), 333, keys, d)
        assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), shape, torch.bfloat16, is_causal)
        assert everywhere[0] == "forward"


@pytest.mark.parametrize("seed", range(200))
def test_they_are_as_exact_as_eager_at_random_shapes(
    everywhere: list[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few programs, each of which takes many tiles, in all orders, also those that are no choice at present."""
    draw = random.Random(seed)
    processors, cache, many = draw.choice((1, 3, 132)), draw.choice((1, 2**40)), draw.choice((0, 2**20))
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: processors)
    monkeypatch.setattr(gpu, "l2_bytes", lambda device: cache)
    monkeypatch.setattr(hopper, "HOPPER_MANY", many)
    monkeypatch.setattr(hopper, "HOPPER_MAX_WASTE", 2**20)
    long_keys, in_turns = draw.choice((0, 2**20)), draw.choice((0, 128))
    monkeypatch.setattr(hopper, "HOPPER_LONG_KEYS", long_keys)
    monkeypatch.setattr(hopper, "HOPPER_LONG_ODD_KEYS", long_keys)
    monkeypatch.setattr(hopper, "WIDE_HEAD_DIM", in_turns)
    for entry, choices in FEW.items():
        most, few_tiles = draw.choice((0, 2**20)), draw.choice([*choices.values()])
        monkeypatch.setitem(hopper.HOPPER_FORWARD_FEW, entry, {most: few_tiles})
    few = draw.choice((0, 1, 20))
    monkeypatch.setattr(hopper, "HOPPER_FEW", few)
    monkeypatch.setattr(hopper, "HOPPER_SHARED", few)
    monkeypatch.setattr(hopper, "HOPPER_FEWEST", draw.choice((0, 2**20)))
    monkeypatch.setattr(
        hopper, "HOPPER_FLOAT32_ALONE", dict.fromkeys((16, 32, 64, 128), draw.choice(((0, 0), (2**20, 2**20))))
    )
    for fewest_visits in ("HOPPER_VISITS", "HOPPER_FLOAT32_VISITS"):
        monkeypatch.setattr(hopper, fewest_visits, (draw.choice((1, 2)), 0))
    wide = hopper.HOPPER_BACKWARD[128]._replace(ds_stages=draw.choice((1, 2)))
    monkeypatch.setitem(hopper.HOPPER_BACKWARD, 128, wide)
    kv_heads, group = draw.choice((1, 2, 3)), draw.choice((1, 1, 2, 3, 4))
    leading = (draw.choice((1, 2)), kv_heads * group)
    lengths = draw.randint(128, 900), draw.randint(128, 900)
    layout = draw.choice(("contiguous", "heads_inside"))
    dtype, is_causal = draw.choice(DTYPES), draw.random() < 0.5
    d = draw.randint(16, 128) if dtype == torch.float32 else 8 * draw.randint(2, 16)
    shape = Shape(leading, *lengths, d, layout, group)
    assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), shape, dtype, is_causal)
    assert everywhere


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("n", "d"), [(4096, 64), (4096, 128), (8192, 64)])  # the last has one tile a program
def test_a_size_that_takes_them_by_itself(n: int, d: int, dtype: torch.dtype) -> None:
    assert_as_exact_as_eager(partial(run_flash, FlashAttentionTriton), Shape((1, 8), n, n, d), dtype, True)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("by_torch", [False, True])
def test_deterministic_gradients_repeat_to_the_bit(
    everywhere: list[str], by_torch: bool, dtype: torch.dtype, d: int
) -> None:
    q, k, v, grad_out = make_inputs(Shape((2, 4), 2048, 2048, d), dtype)
    torch.use_deterministic_algorithms(by_torch)
    try:
        runs = []
        for _ in range(4):
            out = flash_attention(q, k, v, True, impl="triton", deterministic=not by_torch)
            runs.append((out.detach(), *gradients(out, q, k, v, grad_out)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert "backward" not in everywhere and "forward" in everywhere
    for one in runs[1:]:
        torch.testing.assert_close(one, runs[0], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracing
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("d", [64, 128])
def test_they_compile_into_a_graph(
    everywhere: list[str], d: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the compiler allows no poison in its graphs
    q, k, v, grad_out = make_inputs(Shape((2, 2), 333, 333, d), dtype)
    apply = FlashAttentionTriton.apply
    expected = apply(q, k, v, True)
    out = torch.compile(apply, fullgraph=True)(q, k, v, True)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    of_graph, of_eager = (gradients(x, q, k, v, grad_out) for x in (out, expected))
    torch.testing.assert_close(of_graph, of_eager)  # summed in another order
    assert everywhere == ["forward"] * 2 + ["backward"] * 2


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")  # the leaves' own
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.usefixtures("everywhere")
def test_a_cuda_graph_replays_them_on_new_inputs(d: int, dtype: torch.dtype) -> None:
    q, k, v, grad_out = make_inputs(Shape((1, 4), 512, 512, d), dtype)
    aside = torch.cuda.Stream()

    def step() -> tuple[Tensor, ...]:
        out = FlashAttentionTriton.apply(q, k, v, True)
        return out, *gradients(out, q, k, v, grad_out)

    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()
    with torch.no_grad():
        for x in (q, k, v, grad_out):
            x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    out, dq, dk, dv = step()
    for got, expected in zip(held, (out, dq, dk, dv), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=2e-2)
    torch.testing.assert_close(held[0], out, rtol=0, atol=0)


def test_they_run_on_the_stream_and_the_device_of_their_inputs(everywhere: list[str]) -> None:
    devices = [torch.device("cuda", i) for i in range(min(2, torch.cuda.device_count()))]
    for device in devices:
        q, k, v, grad_out = (
            x.detach().to(device).requires_grad_() for x in make_inputs(Shape((1, 2), 300, 300, 64), torch.bfloat16)
        )
        exact, eager = exact_and_eager(q, k, v, grad_out.detach(), True)
        torch.cuda.synchronize(device)
        with torch.cuda.device(device):
            aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            busy = torch.ones(4096, 4096, device=device)
            for _ in range(20):
                busy = busy @ busy * 0
            with torch.no_grad():
                q2 = (q + busy[0, 0].to(q.dtype)).requires_grad_()
            got = run_flash(FlashAttentionTriton, q2, k, v, grad_out.detach(), True)
        aside.synchronize()
        assert_within_gate(got, exact, eager, q.dtype)
    assert len(everywhere) == 2 * len(devices)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("group", [1, 4])
def test_forward_and_backward_allocate_nothing_of_n_squared(
    group: int, d: int, deterministic: bool, dtype: torch.dtype
) -> None:
    """Besides q, k, v and grad_out: out, lse, delta, the gradients, and one float32 dq; of float32 for that pieces.

    Where programs share keys, dk and dv are float32 sums too, until that of dq is rounded and free.
    """
    heads, n = group, 65536 // group
    q, k, v = (torch.randn(1, kind, n, d, device="cuda", dtype=dtype, requires_grad=True) for kind in (heads, 1, 1))
    grad_out = torch.randn_like(q)

    def step() -> Any:
        out = flash_attention(q, k, v, True, impl="triton", deterministic=deterministic)
        return gradients(out, q, k, v, grad_out)

    # In this thread: autograd's own may still hold the first gradients when the second step begins.
    with torch.autograd.set_multithreading_enabled(False):
        step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
    of_q, of_k, size = q.numel(), k.numel(), q.element_size()
    pieces = 3 * 2 if dtype == torch.float32 else 0  # bytes of an element
    forward = size * of_q + 4 * heads * n + pieces * (of_q + 2 * of_k)
    backward = 2 * size * (of_q + of_k) + 2 * 4 * heads * n
    if not deterministic:
        backward += pieces * 2 * (of_q + of_k) if pieces else 4 * of_q
    if group > 1 and not deterministic and not pieces:
        backward += 2 * (4 - size) * of_k
    expected = max(forward, backward)
    found = torch.cuda.max_memory_allocated() - before
    assert abs(found - expected) < 0.02 * expected, (found, expected)
