"""flash_attention: what it dispatches to, and what it says to wrong inputs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from cs336_systems.attention import launch, planning
from cs336_systems.attention.api import flash_attention, flash_attention_pytorch, flash_attention_triton
from cs336_systems.attention.flash_pytorch import FlashAttentionPyTorch
from cs336_systems.attention.flash_triton import FlashAttentionTriton
from cs336_systems.attention.launch import Launch
from cs336_systems.attention.reference import attention
from cs336_systems.attention.request import FP32_PRODUCTS
from tests.attention.gate import DEVICE, Shape, assert_within_gate, exact_and_eager, make_inputs

IMPLS = ("auto", "reference", "pytorch", "triton", "sdpa")


def ones(*shape: int, dtype: torch.dtype = torch.float32, device: str = DEVICE) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("impl", IMPLS)
def test_all_implementations_agree(impl: str, leading: tuple[int, ...], is_causal: bool) -> None:
    q, k, v, grad_out = make_inputs(Shape(leading, 33, 67, 16), torch.float32)
    out = flash_attention(q, k, v, is_causal, impl=impl, softmax_scale=0.3)
    expected, _ = attention(q, k, v, is_causal, softmax_scale=0.3)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        torch.autograd.grad(out, (q, k, v), grad_out), torch.autograd.grad(expected, (q, k, v), grad_out)
    )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("impl", IMPLS)
def test_all_implementations_group_queries(impl: str, is_causal: bool) -> None:
    """Query heads 0 and 1 see key head 0, 2 and 3 see 1."""
    q, k, v, grad_out = make_inputs(Shape((2, 4), 33, 35, 16, heads_per_kv_head=2), torch.float32)
    out = flash_attention(q, k, v, is_causal, impl=impl)
    expected = torch.stack([attention(q[:, i], k[:, i // 2], v[:, i // 2], is_causal)[0] for i in range(4)], 1)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        torch.autograd.grad(out, (q, k, v), grad_out), torch.autograd.grad(expected, (q, k, v), grad_out)
    )


@pytest.mark.parametrize("call", [flash_attention_pytorch, flash_attention_triton])
def test_heads_may_lie_inside(call: Callable[..., torch.Tensor]) -> None:
    q, k, v = (torch.randn(2, n, heads, 16, device=DEVICE) for n, heads in ((33, 4), (67, 2), (67, 2)))
    out = call(q, k, v, causal=True, softmax_scale=0.3)
    expected, _ = attention(*(x.transpose(1, 2) for x in (q, k, v)), True, softmax_scale=0.3)
    assert out.shape == q.shape and out.is_contiguous()
    torch.testing.assert_close(out, expected.transpose(1, 2))
    with pytest.raises(ValueError, match="query, key, value have 3, 4, 4 dimensions; allowed: 4 each"):
        call(q[0], k, v)


EMPTY = {
    "batch": ((0, 3, 5, 16), (0, 3, 7, 16)),
    "batch of batches": ((2, 0, 3, 5, 16), (2, 0, 3, 7, 16)),
    "batch of one head": ((0, 5, 16), (0, 7, 16)),
    "heads": ((2, 0, 5, 16), (2, 0, 7, 16)),
    "query heads": ((2, 0, 5, 16), (2, 2, 7, 16)),
    "queries": ((2, 4, 0, 16), (2, 2, 7, 16)),
    "queries and keys": ((2, 4, 0, 16), (2, 2, 0, 16)),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton", "sdpa"])
def test_nothing_to_attend_for_gives_an_empty_result(impl: str, empty: str, is_causal: bool) -> None:
    """As torch's own attention: code that routes tokens to experts may have none for one of them."""
    of_q, of_k = EMPTY[empty]
    q = torch.zeros(of_q, device=DEVICE, requires_grad=True)
    k, v = (torch.full(of_k, float("nan"), device=DEVICE, requires_grad=True) for _ in range(2))
    out = flash_attention(q, k, v, is_causal, impl=impl)
    assert out.shape == q.shape and out.numel() == 0
    for x, grad in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
        assert grad.shape == x.shape and not grad.any()


@pytest.mark.parametrize("impl", ["pytorch", "triton", "sdpa"])
def test_autocast_casts_as_it_casts_torchs_own_attention(impl: str) -> None:
    q, k, v, _ = make_inputs(Shape((2, 2), 33, 67, 16), torch.float32)
    grad_out = torch.randn_like(q).half()
    with torch.autocast(DEVICE, torch.float16):
        out = flash_attention(q, k, v, True, impl=impl)
    expected = flash_attention(q.half(), k.half(), v.half(), True, impl=impl)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    grads = torch.autograd.grad(out, (q, k, v), grad_out)
    assert {one.dtype for one in grads} == {torch.float32}
    torch.testing.assert_close(grads, torch.autograd.grad(expected, (q, k, v), grad_out), rtol=0, atol=0)


@pytest.mark.parametrize("impl", IMPLS)
def test_autocast_takes_mixed_dtypes(impl: str) -> None:
    q, k, v, _ = make_inputs(Shape((2, 2), 33, 67, 16), torch.float32)
    with torch.autocast(DEVICE, torch.float16):
        out = flash_attention(q, k.half(), v.half(), True, impl=impl)
        torch.testing.assert_close(out, flash_attention(q.half(), k.half(), v.half(), True, impl=impl), rtol=0, atol=0)


def test_autocast_rounds_nothing_inside_and_leaves_float64_alone() -> None:
    q, k, v, grad_out = make_inputs(Shape((2,), 33, 67, 16), torch.float32)

    def run() -> tuple[torch.Tensor, ...]:
        out = FlashAttentionPyTorch.apply(q, k, v, True)
        return out, *torch.autograd.grad(out, (q, k, v), grad_out)

    expected = run()
    with torch.autocast(DEVICE, torch.bfloat16):
        torch.testing.assert_close(run(), expected, rtol=0, atol=0)
        assert flash_attention(q.double(), k.double(), v.double(), impl="pytorch").dtype == torch.float64


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracing
def test_attention_compiles_in_one_piece_under_autocast_too() -> None:
    q = torch.randn(1, 33, 16, device=DEVICE)
    compiled = torch.compile(lambda x: flash_attention(x, x, x, True), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q), flash_attention(q, q, q, True))
    with torch.autocast(DEVICE, torch.bfloat16):
        assert compiled(q).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracing
@pytest.mark.parametrize("impl", ["pytorch", "triton"])
@pytest.mark.parametrize("of", ["qkk", "qqk", "qqq"])
def test_one_tensor_may_be_several_arguments_of_a_graph(of: str, impl: str) -> None:
    torch.compiler.reset()
    q, k, _, grad_out = make_inputs(Shape((2, 2), 33, 33, 16), torch.float32)
    given = {"q": q, "k": k}

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return flash_attention(*(dict(zip("qk", tensors, strict=True))[name] for name in of), True, impl=impl)

    leaves = [given[name] for name in dict.fromkeys(of)]
    out = torch.compile(run, backend="aot_eager", fullgraph=True)(q, k)
    expected = run(q, k)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        torch.autograd.grad(out, leaves, grad_out), torch.autograd.grad(expected, leaves, grad_out)
    )


def test_auto_is_triton_on_cuda_and_pytorch_elsewhere() -> None:
    q = ones(1, 16, 16).requires_grad_()
    expected = "FlashAttentionTritonBackward" if DEVICE == "cuda" else "FlashAttentionPyTorchBackward"
    assert type(flash_attention(q, q, q).grad_fn).__name__ == expected


@pytest.mark.parametrize("impl", ["reference", "pytorch", "sdpa"])
def test_float64_is_for_all_but_triton(impl: str) -> None:
    q = torch.randn(1, 16, 16, dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(flash_attention(q, q, q, impl=impl), attention(q, q, q)[0])
    with pytest.raises(ValueError, match=r"^q has dtype torch\.float64; allowed for impl='triton': torch\.float32"):
        flash_attention(q, q, q, impl="triton")


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_eager_implementations_take_any_head_dim(impl: str) -> None:
    q = torch.randn(1, 16, 200, device=DEVICE)
    torch.testing.assert_close(flash_attention(q, q, q, impl=impl), attention(q, q, q)[0])


@pytest.mark.parametrize(
    ("q", "k", "v", "impl", "message"),
    [
        (ones(1, 4, 16), ones(1, 4, 16), ones(1, 4, 16), "cuda", "impl is 'cuda'; allowed: auto, reference"),
        (ones(1, 4, 16), ones(1, 5, 16), ones(1, 4, 16), "auto", r"q, k, v have shapes \(1, 4, 16\), \(1, 5, 16\)"),
        (ones(2, 4, 16), ones(1, 4, 16), ones(1, 4, 16), "auto", r"q, k, v have shapes \(2, 4, 16\), \(1, 4, 16\)"),
        (ones(1, 4, 4, 16), ones(1, 3, 4, 16), ones(1, 3, 4, 16), "auto", "num_kv_heads a divisor of num_heads"),
        (ones(2, 4, 4, 16), ones(1, 4, 4, 16), ones(1, 4, 4, 16), "auto", "allowed: the same leading dimensions"),
        (ones(1, 4, 32), ones(1, 4, 16), ones(1, 4, 16), "auto", r"q, k, v have shapes \(1, 4, 32\), \(1, 4, 16\)"),
        (ones(16), ones(16), ones(16), "auto", r"q, k, v have shapes \(16,\), \(16,\)"),
        (ones(1, 4, 16), ones(1, 0, 16), ones(1, 0, 16), "auto", "allowed: at least one key"),
        (ones(1, 4, 0), ones(1, 4, 0), ones(1, 4, 0), "auto", "a head_dim of at least 1"),
        (ones(2, 4, 4, 16), ones(2, 0, 4, 16), ones(2, 0, 4, 16), "auto", "num_kv_heads a divisor of num_heads"),
        (ones(1, 4, 16), ones(1, 4, 16).half(), ones(1, 4, 16), "auto", "q, k, v have dtypes torch.float32, torch.f"),
        (ones(1, 4, 16).int(), ones(1, 4, 16).int(), ones(1, 4, 16).int(), "auto", "q has dtype torch.int32; allowed"),
        (ones(1, 4, 16), ones(1, 4, 16), ones(1, 4, 16, device="meta"), "auto", "q, k, v are on .*, meta; allowed"),
        (ones(1, 4, 8), ones(1, 4, 8), ones(1, 4, 8), "pytorch", "head_dim is 8; allowed for impl='pytorch': 16 to"),
        (ones(1, 4, 257), ones(1, 4, 257), ones(1, 4, 257), "triton", "head_dim is 257; allowed for impl='triton'"),
        (*[ones(1, 4, 16, device="meta")] * 3, "triton", "q is on meta; allowed for Triton: CUDA"),
    ],
)
def test_wrong_inputs_get_one_clear_line(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, impl: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        flash_attention(q, k, v, impl=impl)
    assert "\n" not in str(raised.value)
    assert "; allowed" in str(raised.value)


@pytest.mark.parametrize("call", [flash_attention_triton, flash_attention_pytorch])
@pytest.mark.parametrize("of_keys", [(2, 33, 3, 32), (2, 33, 0, 32), (1, 33, 4, 32), (2, 33, 4, 16)])
def test_heads_inside_are_refused_in_their_own_layout(
    call: Callable[..., torch.Tensor], of_keys: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"\(2, 33, 4, 32\), .*; allowed: \(batch, seq_len_q, num_heads, head_dim\)"):
        call(ones(2, 33, 4, 32), ones(*of_keys), ones(*of_keys))


@pytest.mark.parametrize("impl", IMPLS)
def test_a_sparse_tensor_gets_one_clear_line(impl: str) -> None:
    x = ones(2, 4, 16).to_sparse()
    with pytest.raises(ValueError, match=r"^q is .*; allowed: a dense tensor$"):
        flash_attention(x, x, x, impl=impl)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("impl", IMPLS)
def test_a_nested_tensor_gets_one_clear_line(impl: str, layout: torch.layout) -> None:
    x = torch.nested.nested_tensor([ones(2, 3, 16), ones(3, 3, 16)], layout=layout)
    with pytest.raises(ValueError, match=r"^q is nested; allowed: a dense tensor$"):
        flash_attention(x, x, x, impl=impl)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("call", [flash_attention_triton, flash_attention_pytorch])
def test_a_nested_tensor_with_heads_inside_gets_one_clear_line(call: Callable[..., torch.Tensor]) -> None:
    x = torch.nested.nested_tensor([ones(2, 3, 16), ones(3, 3, 16)], layout=torch.strided)
    with pytest.raises(ValueError, match=r"^q is nested; allowed: a dense tensor$"):
        call(x, x, x)


@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton", "sdpa"])
def test_a_gradient_may_be_zeros_without_memory(impl: str) -> None:
    q, k, v, _ = make_inputs(Shape((2,), 5, 7, 16), torch.float32)
    out = flash_attention(q, k, v, impl=impl).sgn().sum()
    assert not any(grad.any() for grad in torch.autograd.grad(out, (q, k, v)))


def without_memory(x: torch.Tensor) -> torch.Tensor:
    return torch._efficientzerotensor(x.shape, dtype=x.dtype, device=x.device)


LAZY = {
    "negated": lambda x: torch._neg_view(x),
    "imaginary part of a conjugate": lambda x: torch.complex(x, -x).conj().imag,
    "zeros without memory": without_memory,
}


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton", "sdpa"])
def test_memory_need_not_hold_the_values(impl: str, kind: str, place: int) -> None:
    """The second call takes the plans of plain tensors, unless it sees the difference."""
    if impl == "sdpa" and kind == "zeros without memory" and place < 3:
        pytest.skip("torch's own attention reads the memory that is not there")
    plain = [x.detach() for x in make_inputs(Shape((2, 3), 5, 37, 16), torch.float32)]
    lazy = [LAZY[kind](x) if i == place else x for i, x in enumerate(plain)]
    for *inputs, grad_out in (plain, lazy):
        q, k, v = (x.detach().requires_grad_() for x in inputs)
        out = flash_attention(q, k, v, True, impl=impl)
        grads = torch.autograd.grad(out, (q, k, v), grad_out)
        exact, eager = exact_and_eager(*(x.clone() for x in inputs), grad_out.clone(), True)
        assert_within_gate(dict(zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True)), exact, eager, q.dtype)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:FutureWarning")  # since torch 2.14
@pytest.mark.parametrize("impl", ["pytorch", "triton"])
def test_a_traced_call_equals_a_plain_one(impl: str) -> None:
    """As by the picture of a model in TensorBoard."""
    inputs = tuple(x.detach() for x in make_inputs(Shape((2,), 20, 20, 16), torch.float32)[:3])
    traced = torch.jit.trace(lambda q, k, v: flash_attention(q, k, v, True, impl=impl), inputs)
    other = tuple(2 * x for x in inputs)
    torch.testing.assert_close(traced(*other), flash_attention(*other, True, impl=impl))


@pytest.mark.parametrize("seed", [torch.zeros(0).long(), torch.zeros(2).long(), torch.zeros(1).int()], ids=str)
@pytest.mark.parametrize("call", [FlashAttentionTriton, FlashAttentionPyTorch])
def test_a_seed_of_another_form_is_refused(call: Any, seed: torch.Tensor) -> None:
    """A kernel would read past its end."""
    q = ones(1, 4, 16)
    options = (True, None, None, 0.3) if call is FlashAttentionTriton else (True, None, 0.3)
    with pytest.raises(ValueError, match=r"^dropout_seed is .*; allowed: \(1,\), torch.int64, on"):
        call.apply(q, q, q, *options, seed.to(DEVICE))


@pytest.mark.parametrize("impl", ["reference", "pytorch", "triton", "sdpa"])
@pytest.mark.parametrize(
    "scale",
    ["0.1", True, torch.tensor(0.1, requires_grad=True), float("nan"), 10**400],
    ids=["text", "bool", "tensor", "not a number", "beyond all floats"],
)
def test_a_scale_is_a_number(scale: Any, impl: str) -> None:
    """A tensor would get no gradient, without a word."""
    q = ones(1, 4, 16)
    with pytest.raises(ValueError, match=r"^softmax_scale is .*; allowed: a number, which gets no gradient, or None$"):
        flash_attention(q, q, q, impl=impl, softmax_scale=scale)


@pytest.mark.parametrize("mask", ["no", 1, torch.ones(5, 5, dtype=torch.bool)], ids=["text", "number", "tensor"])
def test_a_mask_is_causal_or_not(mask: Any) -> None:
    q = torch.randn(2, 5, 16)
    with pytest.raises(ValueError, match=r"^is_causal is of type"):
        flash_attention(q, q, q, mask)
    with pytest.raises(ValueError, match="deterministic of"):
        flash_attention(q, q, q, deterministic=mask)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 0.3, 2, 1e-44, 1e-46, -1e-46, 5e-324])
@pytest.mark.parametrize("impl", IMPLS)
def test_a_scale_has_any_sign(impl: str, scale: float) -> None:
    q, k, v = torch.randn(3, 2, 4, 33, 16, device=DEVICE).unbind()
    expected = flash_attention(q, k, v, True, impl="reference", softmax_scale=scale)
    torch.testing.assert_close(flash_attention(q, k, v, True, impl=impl, softmax_scale=scale), expected)


@pytest.mark.parametrize("impl", ["pytorch", "triton"])
def test_a_second_derivative_is_refused_but_by_the_reference(impl: str) -> None:
    q = torch.randn(2, 5, 16, device=DEVICE, requires_grad=True)
    (gradient,) = torch.autograd.grad(flash_attention(q, q, q, impl="reference").sum(), q, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), q)[0].any()
    with pytest.raises(RuntimeError, match="impl='reference' takes create_graph=True"):
        torch.autograd.grad(flash_attention(q, q, q, impl=impl).sum(), q, create_graph=True)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_shapes_are_known_without_memory(dropout_p: float) -> None:
    q = ones(2, 4, 9, 16, device="meta").requires_grad_()
    k = ones(2, 2, 7, 16, device="meta").requires_grad_()
    out = flash_attention(q, k, k, True, dropout_p=dropout_p)
    assert [x.shape for x in (out, *torch.autograd.grad(out.sum(), (q, k)))] == [q.shape, q.shape, k.shape]


def test_two_threads_at_once() -> None:
    """Of Triton too: its interpreter by itself runs one kernel at a time."""

    def call(impl: str) -> dict[str, torch.Tensor]:
        q, k, v, grad_out = make_inputs(Shape((2,), 70, 33, 16), torch.float32)
        out = flash_attention(q, k, v, True, impl=impl)
        return dict(zip(("out", "dq", "dk", "dv"), (out, *torch.autograd.grad(out, (q, k, v), grad_out)), strict=True))

    q, k, v, grad_out = make_inputs(Shape((2,), 70, 33, 16), torch.float32)
    exact, eager = exact_and_eager(q, k, v, grad_out, True)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(call, ["triton", "triton", "pytorch", "triton"]):
            assert_within_gate(found, exact, eager, torch.float32)


@pytest.mark.parametrize(("impl", "asked"), [("triton", "fp8"), ("pytorch", "tf32"), ("sdpa", "ieee")])
def test_a_precision_that_nobody_would_use_is_refused(impl: str, asked: str) -> None:
    q = ones(1, 4, 16)
    with pytest.raises(ValueError, match=rf"^fp32_precision is '{asked}' and impl '{impl}'; allowed: None, and for"):
        flash_attention(q, q, q, impl=impl, fp32_precision=asked)


SETTINGS = {
    "": "ieee",
    "torch.set_float32_matmul_precision('high')": "tf32",
    "torch.backends.cuda.matmul.allow_tf32 = True": "tf32",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "tf32",
    "torch.backends.fp32_precision = 'tf32'": "tf32",
    "torch.backends.fp32_precision = 'tf32'; torch.backends.cuda.matmul.fp32_precision = 'ieee'": "ieee",
    "torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.fp32_precision = 'ieee'": "ieee",
}


@pytest.fixture(scope="module")
def fresh_process() -> dict[str, Any]:
    """What a process finds that imports the package outside Triton's interpreter, step by step."""
    program = f"""
import json, os, sys
import cs336_systems.attention, cs336_systems.attention.reference, cs336_systems.attention.flash_pytorch
import torch
touched = ["triton" in sys.modules, torch.cuda.is_initialized()]
import cs336_systems.attention.flash_triton
touched.append("torch._dynamo" in sys.modules)
from cs336_systems.attention.api import flash_attention
from cs336_systems.attention.request import torch_fp32_precision
try:
    flash_attention(*torch.ones(3, 1, 16, 16), impl="triton")
except ValueError as error:
    refusal = str(error)
products = {{}}
for setting in {list(SETTINGS)}:
    read, write = os.pipe()
    if os.fork() == 0:
        exec(setting)
        os.write(write, torch_fp32_precision().encode())
        os._exit(0)
    os.wait()
    os.close(write)
    products[setting] = os.read(read, 100).decode()
print(json.dumps(dict(touched=touched, refusal=refusal, products=products)))
"""
    command, environment = [sys.executable, "-c", program], os.environ | {"TRITON_INTERPRET": "0"}
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def test_importing_the_package_touches_neither_cuda_nor_triton_and_its_kernels_no_compiler_of_torch(
    fresh_process: dict[str, Any],
) -> None:
    assert fresh_process["touched"] == [False] * 3


def test_triton_refuses_cpu_tensors_outside_its_interpreter(fresh_process: dict[str, Any]) -> None:
    assert fresh_process["refusal"] == "q is on cpu; allowed for Triton: CUDA, or the CPU with TRITON_INTERPRET=1"


def test_float32_products_are_torchs_however_they_were_set(fresh_process: dict[str, Any]) -> None:
    """Each setting in a process of its own, forked after the imports."""
    assert fresh_process["products"] == SETTINGS


@pytest.mark.parametrize("asked", [None, "ieee", "tf32", "bf16x3"])
def test_the_kernels_are_told_what_was_asked_for(asked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    q, k, v, grad_out = make_inputs(Shape((2,), 33, 33, 16), torch.float32)

    def note(launch: Launch, *tensors: object) -> None:
        if "INPUT_PRECISION" in launch.constants:
            told.append(launch.constants["INPUT_PRECISION"])

    monkeypatch.setattr(planning, "IS_COMPILED", True)
    monkeypatch.setattr(planning, "require_launchable", lambda kernel, x, name: None)
    monkeypatch.setattr(Launch, "__call__", note)
    monkeypatch.setattr(launch, "compile_side_by_side", lambda *calls: None)
    out = flash_attention(q, k, v, impl="triton", fp32_precision=asked)
    torch.autograd.grad(out, (q, k, v), grad_out)
    assert told == [FP32_PRODUCTS[asked or "ieee"]] * 3


@pytest.mark.gpu
def test_more_bits_are_less_error() -> None:
    q, k, v, grad_out = make_inputs(Shape((4,), 203, 203, 64), torch.float32)
    exact, _ = exact_and_eager(q, k, v, grad_out, True)
    errors: dict[str, list[float]] = {}
    for precision in ("ieee", "bf16x3", "tf32"):
        out = flash_attention(q, k, v, True, impl="triton", fp32_precision=precision)
        got = out, *torch.autograd.grad(out, (q, k, v), grad_out)
        pairs = zip(got, (exact[name] for name in ("out", "dq", "dk", "dv")), strict=True)
        errors[precision] = [float((one.detach().double() - right).abs().max()) for one, right in pairs]
    for ieee, bf16x3, tf32 in zip(*errors.values(), strict=True):
        assert ieee < bf16x3 < tf32 < 0.02


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_sdpa_compiles_for_any_size(kv_heads: int) -> None:
    q, k = torch.randn(2, 4, 70, 16), torch.randn(2, kv_heads, 70, 16)
    compiled = torch.compile(
        lambda q, k: flash_attention(q, k, k, True, impl="sdpa"), fullgraph=True, backend="aot_eager", dynamic=True
    )
    torch.testing.assert_close(compiled(q, k), flash_attention(q, k, k, True, impl="reference"), rtol=1e-5, atol=1e-5)
