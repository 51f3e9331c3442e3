"""Both FlashAttention-2 implementations: the course's tests, then the gate of `gate.py` over all shapes."""

from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from cs336_systems.attention.api import flash_attention
from cs336_systems.attention.reference import attention
from tests.adapters import (
    get_flashattention_autograd_function_pytorch,
    get_flashattention_autograd_function_triton,
)
from tests.attention.gate import (
    DEVICE,
    GROUPED_SHAPES,
    SHAPES,
    Shape,
    assert_as_exact_as_eager,
    assert_within_gate,
    exact_and_eager,
    make_inputs,
    run_flash,
    saved_lse,
)

FUNCTIONS = {
    "pytorch": get_flashattention_autograd_function_pytorch,
    "triton": get_flashattention_autograd_function_triton,
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def course_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.random.manual_seed(0)
    q, k, v, grad_out = torch.randn(4, 4, 128, 64, device=DEVICE).unbind()
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad_out


def check_course_forward(impl: str, is_causal: bool) -> None:
    q, k, v, _ = course_inputs()
    out = FUNCTIONS[impl]().apply(q, k, v, is_causal)
    expected_out, expected_lse = attention(q, k, v, is_causal)
    torch.testing.assert_close(out, expected_out, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(saved_lse(out, q), expected_lse, rtol=1e-2, atol=1e-2)


def check_course_backward(impl: str, is_causal: bool) -> None:
    q, k, v, grad_out = course_inputs()
    expected = torch.autograd.grad(attention(q, k, v, is_causal)[0], (q, k, v), grad_out)
    got = torch.autograd.grad(FUNCTIONS[impl]().apply(q, k, v, is_causal), (q, k, v), grad_out)
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_forward_pass_pytorch(is_causal: bool) -> None:
    check_course_forward("pytorch", is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_forward_pass_triton(is_causal: bool) -> None:
    check_course_forward("triton", is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_backward_pytorch(is_causal: bool) -> None:
    check_course_backward("pytorch", is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_backward_triton(is_causal: bool) -> None:
    check_course_backward("triton", is_causal)


def gate_cases() -> list[object]:
    """All shapes, dtypes and masks on a GPU; on the CPU every fifth shape of the halves, one of both masks for lengths
    that are equal, and no bfloat16 in Triton, whose interpreter multiplies its bit patterns. Grouped queries are for
    the kernels; the other repeats heads."""
    cases = []
    shapes = enumerate((*SHAPES, *GROUPED_SHAPES))
    for impl, dtype, (i, shape), is_causal in product(FUNCTIONS, DTYPES, shapes, (False, True)):
        if impl == "pytorch" and shape in GROUPED_SHAPES:
            continue
        is_half = dtype != torch.float32
        on_gpu = (impl == "triton" and dtype == torch.bfloat16) or (is_half and i % 5 != 0)
        is_other = shape.seq_len_q == shape.seq_len_k and is_causal != bool(i % 2)
        marks = [*([pytest.mark.gpu] if on_gpu else []), *([pytest.mark.slow] if is_other else [])]
        name = f"{impl}-{str(dtype).removeprefix('torch.')}-{shape}-{'causal' if is_causal else 'full'}"
        cases.append(pytest.param(impl, dtype, shape, is_causal, marks=marks, id=name))
    return cases


@pytest.mark.parametrize(("impl", "dtype", "shape", "is_causal"), gate_cases())
def test_flash_is_as_exact_as_eager(impl: str, dtype: torch.dtype, shape: Shape, is_causal: bool) -> None:
    assert_as_exact_as_eager(partial(run_flash, FUNCTIONS[impl]()), shape, dtype, is_causal)


@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_takes_the_stride_0_gradient_of_a_sum(impl: str) -> None:
    q, k, v, _ = make_inputs(Shape((2,), 113, 67, 40), torch.float32)
    exact, eager = exact_and_eager(q, k, v, torch.ones_like(q), True)
    grads = torch.autograd.grad(FUNCTIONS[impl]().apply(q, k, v, True).sum(), (q, k, v))
    assert_within_gate(dict(zip(("dq", "dk", "dv"), grads, strict=True)), exact, eager, q.dtype)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_takes_a_softmax_scale(impl: str, is_causal: bool) -> None:
    q, k, v, grad_out = make_inputs(Shape((2,), 67, 130, 64), torch.float32)
    exact, eager = exact_and_eager(q, k, v, grad_out, is_causal, softmax_scale=0.3)
    got = run_flash(FUNCTIONS[impl](), q, k, v, grad_out, is_causal, 0.3)
    assert_within_gate(got, exact, eager, q.dtype)


@pytest.mark.parametrize("offset", [-300.0, 300.0])
@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_does_not_overflow_on_large_scores(impl: str, offset: float) -> None:
    """A log-sum-exp of several hundred, of either sign: exp of it or of its negative has no float32.

    Such a log-sum-exp is rounded to 2^-16, and every p of the backward by as much: more than the gate allows.
    """
    q, k, v, grad_out = make_inputs(Shape((1,), 67, 67, 64), torch.float32)
    with torch.no_grad():
        q[..., 0], k[..., 0] = 40.0, offset / 40.0 * 8.0
    for is_causal in (False, True):
        exact, _ = exact_and_eager(q, k, v, grad_out, is_causal)
        for name, value in run_flash(FUNCTIONS[impl](), q, k, v, grad_out, is_causal).items():
            torch.testing.assert_close(value.double(), exact[name], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_saves_one_tensor_of_statistics(impl: str) -> None:
    """The log-sum-exp is saved and delta is not, as the course's tests demand."""
    q, k, v, _ = make_inputs(Shape((2,), 65, 33, 16), torch.float32)
    out = FUNCTIONS[impl]().apply(q, k, v)
    assert sorted(x.shape for x in out.grad_fn.saved_tensors) == sorted([q.shape, k.shape, v.shape, out.shape, (2, 65)])


@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_backward_runs_twice_on_a_retained_graph(impl: str) -> None:
    q, k, v, grad_out = make_inputs(Shape((1,), 67, 67, 16), torch.float32)
    out = FUNCTIONS[impl]().apply(q, k, v, True)
    first = torch.autograd.grad(out, (q, k, v), grad_out, retain_graph=True)
    second = torch.autograd.grad(out, (q, k, v), grad_out)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_runs_without_gradients(impl: str) -> None:
    q, k, v, _ = make_inputs(Shape((1,), 33, 33, 16), torch.float32)
    with torch.no_grad():
        out = FUNCTIONS[impl]().apply(q, k, v)
    torch.testing.assert_close(out, attention(q, k, v)[0].detach())


def test_the_tiled_backward_does_not_depend_on_its_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from cs336_systems.attention import flash_pytorch

    monkeypatch.setattr(flash_pytorch, "Q_TILE_SIZE", 32)
    monkeypatch.setattr(flash_pytorch, "K_TILE_SIZE", 16)
    run = partial(run_flash, flash_pytorch.FlashAttentionPyTorch)
    for is_causal in (False, True):
        assert_as_exact_as_eager(run, Shape((2,), 113, 67, 40), torch.float32, is_causal)


def test_the_pytorch_backward_passes_gradcheck() -> None:
    function = get_flashattention_autograd_function_pytorch()
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 16, dtype=torch.float64, device=DEVICE, requires_grad=True) for n in (5, 7, 7))
    assert torch.autograd.gradcheck(lambda q, k, v: function.apply(q, k, v, True), (q, k, v))


def test_the_reference_passes_gradcheck() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 16, dtype=torch.float64, device=DEVICE, requires_grad=True) for n in (5, 7, 7))
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, True), (q, k, v))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracing
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_triton_kernels_compiled_into_a_graph_are_the_same_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, is_causal: bool, dtype: torch.dtype
) -> None:
    """The compiler hands a Python float to a kernel as float64, Triton itself as float32.

    Float32 gradients are added in memory in any order.
    """
    monkeypatch.undo()  # the compiler allows no poison in its graphs
    apply = FUNCTIONS["triton"]().apply
    q, k, v, grad_out = make_inputs(Shape((2,), 203, 203, 64), dtype)

    def run(function) -> tuple:
        out = function(q, k, v, is_causal)
        return out, *torch.autograd.grad(out, (q, k, v), grad_out)

    (out, *grads), (expected, *expected_grads) = run(torch.compile(apply, fullgraph=True)), run(apply)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    sums = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(grads, expected_grads, **sums)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_addresses_beyond_two_gib(impl: str) -> None:
    """2^31 elements of out lie before the last head: its offsets do not fit 32 bits."""
    heads, seq_len, head_dim = 260, 65536, 128
    q = torch.randn(1, seq_len, head_dim, device=DEVICE, dtype=torch.bfloat16).expand(heads, -1, -1)
    k, v = torch.randn(2, heads, 128, head_dim, device=DEVICE, dtype=torch.bfloat16)
    out = FUNCTIONS[impl]().apply(q, k, v)
    torch.testing.assert_close(out[-1], attention(q[-1], k[-1], v[-1])[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("impl", FUNCTIONS)
def test_flash_says_what_functorch_does_not_find_in_it(impl: str) -> None:
    for transform in (torch.vmap, torch.func.grad):
        with pytest.raises(RuntimeError, match="must override the setup_context"):
            transform(lambda q: flash_attention(q, q, q, impl=impl).sum())(torch.randn(2, 16, 16, device=DEVICE))
