"""Dropout: its random words, the mask made of them, and every implementation under the mask of the oracle."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cs336_systems.attention import dropout as dropout_module
from cs336_systems.attention import triton_plans
from cs336_systems.attention.api import flash_attention, flash_attention_pytorch, flash_attention_triton
from cs336_systems.attention.dropout import Dropout, keep_mask, new_seed
from cs336_systems.attention.flash_pytorch import FlashAttentionCompiledBackward, FlashAttentionPyTorch
from cs336_systems.attention.flash_triton import FlashAttentionTriton
from cs336_systems.attention.reference import attention
from tests.attention.gate import DEVICE, Shape, assert_within_gate, exact_and_eager, make_inputs, run_flash

# What comes between is_causal and the dropout: softmax_scale, and fp32_precision.
FUNCTIONS = {"pytorch": (FlashAttentionPyTorch, (None,)), "triton": (FlashAttentionTriton, (None, None))}

SHAPES = (
    Shape((1,), 1, 1, 16),
    Shape((2,), 7, 7, 40),
    Shape((), 113, 113, 64),
    Shape((1,), 128, 128, 64),
    Shape((1,), 65, 130, 80),
    Shape((1,), 130, 70, 128),
    Shape((2, 1, 2), 33, 65, 16),
    Shape((2, 2), 67, 70, 32, "heads_inside"),
)
GROUPED_SHAPES = (Shape((1, 6), 33, 33, 32, "sliced", 3), Shape((1, 2), 130, 67, 128, heads_per_kv_head=2))


def seed_of(number: int) -> Tensor:
    return torch.tensor([number], device=DEVICE)


def visible(attend: Callable[..., Tensor], p: float, *, heads: int = 3, n: int = 100) -> tuple[Tensor, Tensor]:
    """The masks of a call, (heads, n, n): equal scores and v = 1 show the forward's, do = 1 the backward's in dv."""
    q, k = torch.zeros(2, 1, heads, n, 128, device=DEVICE)
    one = torch.eye(n, 128, device=DEVICE).expand(1, heads, n, 128)
    v = one.clone().requires_grad_()
    out = attend(q, k, v)
    (dv,) = torch.autograd.grad(out, v, one)
    forward, backward = out[0, ..., :n] * n * (1 - p), dv[0, ..., :n].transpose(-1, -2) * n * (1 - p)
    for mask in (forward, backward):
        torch.testing.assert_close(mask, mask.round().clamp(0, 1))
    return forward.round().bool(), backward.round().bool()


def assert_fraction(mask: Tensor, expected: float) -> None:
    """Six standard deviations of a binomial: one in 10^9 by chance, and the seeds are fixed."""
    deviation = (expected * (1 - expected) / mask.numel()) ** 0.5
    assert abs(mask.double().mean().item() - expected) <= 6 * deviation


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), 0, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        ((0xFFFFFFFF,) * 4, -1, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
        ),
    ],
)
def test_the_words_are_philox(counter: tuple[int, ...], key: int, words: tuple[int, ...]) -> None:
    """Known answers of Random123, the authors' own library: its tests/kat_vectors, philox4x32 of 7 rounds."""
    got = dropout_module._philox(*(torch.tensor([word]) for word in counter), torch.tensor([key]))
    assert tuple(int(word) for word in got) == words


@pytest.mark.parametrize("p", [1e-3, 0.1, 0.5, 0.9])
def test_probabilities_stay_as_often_as_was_asked(p: float) -> None:
    keep = keep_mask(Dropout(p, seed_of(1)), (2, 3), range(500), range(700))
    assert keep.shape == (2, 3, 500, 700) and keep.dtype == torch.bool
    assert_fraction(keep, 1 - p)
    for dims in ((0, 1, 2), (0, 1, 3), (2, 3)):  # of each column, of each row, of each head
        share = keep.double().mean(dims)
        deviation = (p * (1 - p) * share.numel() / keep.numel()) ** 0.5
        assert ((share - (1 - p)).abs() < 6 * deviation).all()


def test_masks_of_other_heads_rows_columns_and_seeds_are_independent() -> None:
    """Two independent masks of one half agree in one half of their elements; neighbours in a word's quad too."""
    keep = keep_mask(Dropout(0.5, seed_of(1)), (8,), range(256), range(256))
    for shift, dim in ((1, 0), (3, 0), (1, 1), (8, 1), (16, 1), (1, 2), (8, 2), (16, 2)):
        assert_fraction(keep == keep.roll(shift, dim), 0.5)
    assert_fraction(keep[0] == keep[0].T, 0.5 + 0.5 / 256)
    # The whole seed counts, its high word too.
    for seed in (0, 2, 1 + 2**32, 1 + 2**62):
        assert_fraction(keep == keep_mask(Dropout(0.5, seed_of(seed)), (8,), range(256), range(256)), 0.5)


def test_the_mask_does_not_depend_on_the_tile() -> None:
    dropout = Dropout(0.3, new_seed(DEVICE))
    whole = keep_mask(dropout, (2, 3), range(130), range(203))
    for rows, columns in ((range(16), range(16, 203)), (range(32, 130), range(7)), (range(128, 129), range(64, 128))):
        tile = keep_mask(dropout, (2, 3), rows, columns)
        assert torch.equal(tile, whole[..., rows.start : rows.stop, columns.start : columns.stop])


@pytest.mark.parametrize(("p", "threshold"), [(1e-12, -(2**31)), (0.5, 0), (0.75, 2**30), (1 - 1e-12, 2**31 - 1)])
def test_thresholds_are_32_bit_integers(p: float, threshold: int) -> None:
    assert dropout_module.drop_below(p) == threshold


def gate_cases() -> list[Any]:
    """All shapes, dtypes and masks on a GPU; on the CPU each shape with one of both masks."""
    cases = []
    for impl in FUNCTIONS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for i, shape in enumerate((*SHAPES, *GROUPED_SHAPES)):
                if impl == "pytorch" and shape in GROUPED_SHAPES:  # the API repeats the heads
                    continue
                # Triton's interpreter multiplies the bit patterns of bfloat16.
                on_gpu = (impl == "triton" and dtype == torch.bfloat16) or (dtype != torch.float32 and i % 4 != 2)
                for is_causal in (False, True):
                    is_other = is_causal != bool((i + i // 4 + (dtype == torch.float32)) % 2)
                    marks = [*([pytest.mark.gpu] if on_gpu else []), *([pytest.mark.slow] if is_other else [])]
                    name = f"{impl}-{str(dtype).removeprefix('torch.')}-{shape}-{'causal' if is_causal else 'full'}"
                    cases.append(pytest.param(impl, dtype, shape, is_causal, marks=marks, id=name))
    return cases


@pytest.mark.parametrize(("impl", "dtype", "shape", "is_causal"), gate_cases())
def test_flash_with_dropout_is_as_exact_as_eager(impl: str, dtype: torch.dtype, shape: Shape, is_causal: bool) -> None:
    function, between = FUNCTIONS[impl]
    q, k, v, grad_out = make_inputs(shape, dtype)
    dropout = Dropout(0.3, seed_of(0x123456789ABCDEF))
    exact, eager = exact_and_eager(q, k, v, grad_out, is_causal, dropout=dropout)
    assert_within_gate(run_flash(function, q, k, v, grad_out, is_causal, *between, *dropout), exact, eager, dtype)


@pytest.mark.parametrize("p", [1e-12, 0.99])
@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_takes_the_least_and_the_greatest_dropout(impl: str, p: float) -> None:
    function, between = FUNCTIONS[impl]
    q, k, v, grad_out = make_inputs(Shape((2,), 67, 130, 16), torch.float32)
    dropout = Dropout(p, seed_of(0))
    exact, eager = exact_and_eager(q, k, v, grad_out, False, dropout=dropout)
    got = run_flash(function, q, k, v, grad_out, False, *between, *dropout)
    assert_within_gate(got, exact, eager, q.dtype)
    assert all(value.isfinite().all() for value in got.values())


@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton"])
@pytest.mark.parametrize("shape", [(0, 2, 5, 16), (2, 0, 5, 16)])
def test_without_heads_nothing_is_dropped(impl: str, shape: tuple[int, ...]) -> None:
    q = torch.randn(shape, device=DEVICE, requires_grad=True)
    out = flash_attention(q, q, q, dropout_p=0.5, impl=impl)
    out.sum().backward()
    assert q.grad is not None and q.grad.shape == out.shape == shape


@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton", "sdpa"])
def test_the_backward_drops_what_the_forward_dropped(impl: str) -> None:
    torch.manual_seed(0)
    forward, backward = visible(functools.partial(flash_attention, impl=impl, dropout_p=0.25), 0.25)
    assert_fraction(forward, 0.75)
    assert torch.equal(forward, backward)


@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton"])
def test_the_mask_is_the_one_of_keep_mask(impl: str) -> None:
    torch.manual_seed(7)
    forward, _ = visible(functools.partial(flash_attention, impl=impl, dropout_p=0.5), 0.5)
    torch.manual_seed(7)
    expected = keep_mask(Dropout(0.5, new_seed(DEVICE)), (3,), range(100), range(100))
    assert torch.equal(forward, expected)


@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton", "sdpa"])
def test_calls_differ_and_a_seed_repeats_them(impl: str) -> None:
    q, k, v, _ = make_inputs(Shape((2,), 65, 33, 16), torch.float32)

    def run() -> Tensor:
        return flash_attention(q, k, v, impl=impl, dropout_p=0.5)

    torch.manual_seed(0)
    first, second = run(), run()
    torch.manual_seed(0)
    assert torch.equal(first, run()) and torch.equal(second, run())
    assert not torch.equal(first, second)


@pytest.mark.parametrize("call", [flash_attention_pytorch, flash_attention_triton])
def test_dropout_with_the_heads_inside_is_the_same(call: Callable[..., Tensor]) -> None:
    q, k, v = (torch.randn(2, n, heads, 16, device=DEVICE) for n, heads in ((33, 4), (67, 2), (67, 2)))
    torch.manual_seed(0)
    out = call(q, k, v, causal=True, dropout_p=0.2)
    torch.manual_seed(0)
    dropout = Dropout(0.2, new_seed(DEVICE))
    expected, _ = attention(*(x.transpose(1, 2) for x in (q, k, v)), True, dropout=dropout)
    torch.testing.assert_close(out, expected.transpose(1, 2))


@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton", "sdpa"])
def test_no_dropout_is_exactly_no_dropout(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, nothing drawn, and nothing handed to the kernels."""
    handed = []
    arguments = triton_plans._dropout_scalars
    monkeypatch.setattr(triton_plans, "_dropout_scalars", lambda *args: handed.append(arguments(*args)) or handed[-1])
    q, k, v, grad_out = make_inputs(Shape((2,), 65, 33, 16), torch.float32)
    state = torch.get_rng_state(), torch.cuda.get_rng_state() if DEVICE == "cuda" else None

    def run(**options: float) -> tuple[Tensor, ...]:
        out = flash_attention(q, k, v, True, impl=impl, **options)
        return out, *torch.autograd.grad(out, (q, k, v), grad_out)

    for p in (0.0, 0):
        torch.testing.assert_close(run(dropout_p=p), run(), rtol=0, atol=0)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] is None or torch.equal(state[1], torch.cuda.get_rng_state())
    assert handed == ([(None, None)] * 3 if impl == "triton" else [])  # of the forward and of both backward passes


@pytest.mark.parametrize("impl", ["auto", "reference", "pytorch", "triton", "sdpa"])
@pytest.mark.parametrize("p", [1.0, 1, -0.1, float("nan"), float("inf"), True, "0.1", None, torch.tensor(0.1)])
def test_what_is_no_probability_gets_one_clear_line(impl: str, p: object) -> None:
    q = torch.ones(1, 4, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"^dropout_p is .*; allowed: a number from 0 up to, but not, 1$"):
        flash_attention(q, q, q, impl=impl, dropout_p=p)  # type: ignore[arg-type]


def test_the_recomputing_backward_refuses_dropout() -> None:
    q = torch.ones(1, 4, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"^dropout_p is 0\.1; allowed for FlashAttentionCompiledBackward: 0$"):
        FlashAttentionCompiledBackward.apply(q, q, q, False, None, 0.1)


@pytest.mark.parametrize("impl", ["reference", "pytorch"])
def test_dropout_passes_gradcheck(impl: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 16, dtype=torch.float64, device=DEVICE, requires_grad=True) for n in (5, 7, 7))
    dropout = Dropout(0.3, seed_of(0))
    if impl == "reference":
        assert torch.autograd.gradcheck(
            lambda *qkv: attention(*qkv, True, dropout=dropout)[0], (q, k, v), fast_mode=True
        )
    else:
        assert torch.autograd.gradcheck(
            lambda *qkv: FlashAttentionPyTorch.apply(*qkv, True, None, *dropout), (q, k, v), fast_mode=True
        )


@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton"])
def test_a_checkpoint_drops_the_same_again(impl: str) -> None:
    q, k, v, grad_out = make_inputs(Shape((2,), 65, 33, 16), torch.float32)
    attend = functools.partial(flash_attention, impl=impl, dropout_p=0.5)
    torch.manual_seed(0)
    expected = torch.autograd.grad(attend(q, k, v), (q, k, v), grad_out)
    torch.manual_seed(0)
    out = checkpoint(attend, q, k, v, use_reentrant=False)
    torch.manual_seed(1)
    torch.testing.assert_close(torch.autograd.grad(out, (q, k, v), grad_out), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracing
def test_dropout_compiles_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of one graph draws anew, and its backward drops the same; another p is not the first one's."""
    monkeypatch.undo()  # the compiler allows no poison in its graphs
    compiled = torch.compile(flash_attention, backend="aot_eager", fullgraph=True)
    masks = []
    for p in (0.25, 0.25, 0.5):
        forward, backward = visible(functools.partial(compiled, dropout_p=p), p)
        assert torch.equal(forward, backward)
        assert_fraction(forward, 1 - p)
        masks.append(forward)
    assert not torch.equal(masks[0], masks[1])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracing
def test_kernels_with_dropout_compiled_into_a_graph_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the compiler allows no poison in its graphs
    q, k, v, grad_out = make_inputs(Shape((2, 4), 203, 203, 64, heads_per_kv_head=2), torch.bfloat16)
    dropout = Dropout(0.3, seed_of(5))

    def run(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        out = function(q, k, v, True, None, None, *dropout)
        return out, *torch.autograd.grad(out, (q, k, v), grad_out)

    apply = FlashAttentionTriton.apply
    torch.testing.assert_close(run(torch.compile(apply, fullgraph=True)), run(apply), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracing
def test_kernels_with_dropout_draw_anew_in_each_call_of_a_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the compiler allows no poison in its graphs
    compiled = torch.compile(functools.partial(flash_attention, impl="triton", dropout_p=0.25), fullgraph=True)
    masks = []
    for _ in range(2):
        forward, backward = visible(compiled, 0.25)
        assert torch.equal(forward, backward)
        assert_fraction(forward, 0.75)
        masks.append(forward)
    assert not torch.equal(masks[0], masks[1])


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_cuda_graph_drops_anew_in_each_replay_and_the_same_in_its_backward(
    p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the graph's memory is its own
    attend = functools.partial(flash_attention, impl="triton", dropout_p=p)
    n = 100
    q, k = torch.zeros(2, 1, 3, n, 128, device=DEVICE)
    one = torch.eye(n, 128, device=DEVICE).expand(1, 3, n, 128)
    v = one.clone().requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        out = attend(q, k, v)
        return out, *torch.autograd.grad(out, v, one)

    torch.manual_seed(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # Triton compiles, and loads what it compiled, before the capture
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, dv = step()
    masks = []
    for _ in range(2):
        graph.replay()
        torch.testing.assert_close(out[..., :n], dv[..., :n].transpose(-1, -2))
        masks.append(out[0, ..., :n] * n * (1 - p) > 0.5)
        assert_fraction(masks[-1], 1 - p)
    assert torch.equal(masks[0], masks[1]) == (p == 0)
