"""Every implementation of attention that a benchmark can name, ours and PyTorch's, without fallbacks."""

import warnings
from collections.abc import Callable
from typing import Any

from perf.workloads import compile_any_number_of_shapes, imported, measured, require_triton, set_in
from perf.workloads.attention_problem import AttentionProblem
from perf.workloads.workload import Unavailable, WrongResult

TF32 = ("triton_tf32",)
"""Implementations whose float32 products may be TF32's."""

Attend = Callable[[Any, Any, Any], Any]
"""(q, k, v) -> out, all (..., seq_len, d) of one shape, or k and v with fewer heads (`AttentionProblem.kv_heads`)."""

Make = Callable[[AttentionProblem, str], Attend]
"""(problem, device) -> the implementation."""

BACKENDS = {
    "sdpa_flash": "FLASH_ATTENTION",
    "sdpa_cudnn": "CUDNN_ATTENTION",
    "sdpa_efficient": "EFFICIENT_ATTENTION",
    "sdpa_math": "MATH",
}


def implementation(impl: str, problem: AttentionProblem, device: str) -> Attend:
    """Return the function of q, k, v of `problem`. Raises `Unavailable` if this commit or machine lacks it.

    `impl` is one of `IMPLS`, or module:function, a user's own f(q, k, v, is_causal) -> out, all of the same shape,
    (batch, heads, seq_len, d), unless the problem is grouped.
    """
    if ":" in impl:
        return _with_heads(_of_a_user(impl, problem))
    check_impl(impl)
    require_triton(impl, device)
    return IMPLS[impl](problem, device)


def _of_a_user(impl: str, problem: AttentionProblem) -> Attend:
    function = imported(impl)

    def attend(q: Any, k: Any, v: Any) -> Any:
        if not hasattr(out := function(q, k, v, problem.is_causal), "shape"):
            raise WrongResult(f"{impl} returned {type(out).__name__}; allowed: out, a tensor shaped like q")
        return out

    return attend


def check_impl(impl: str) -> None:
    """Raise `ValueError` with one line if `implementation` does not accept `impl`."""
    if ":" in impl:
        imported(impl)
    elif impl not in IMPLS:
        raise ValueError(f"{impl!r} was given; allowed: {', '.join(IMPLS)}, or module:function")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.compile(function)` for any number of static shapes."""
    import torch

    _prepare_to_compile()
    return torch.compile(function, dynamic=False)


def _flash_attention(problem: AttentionProblem, device: str) -> Attend:
    """Return the function that users call, and its choice of an implementation."""
    function = measured("attention.api", "flash_attention")
    return lambda q, k, v: function(q, k, v, is_causal=problem.is_causal)


def _triton(problem: AttentionProblem, device: str) -> Attend:
    function = measured("attention.flash_triton", "FlashAttentionTriton")
    return lambda q, k, v: function.apply(q, k, v, problem.is_causal)


def _triton_tf32(problem: AttentionProblem, device: str) -> Attend:
    """Return ours with the TF32 products that torch's setting allows."""
    function = measured("attention.flash_triton", "FlashAttentionTriton")
    if problem.dtype != "float32":
        raise Unavailable(f"TF32 applies to float32 only, and the dtype is {problem.dtype}")
    return lambda q, k, v: function.apply(q, k, v, problem.is_causal, None, "tf32")


def _triton_compiled(problem: AttentionProblem, device: str) -> Attend:
    apply = compiled(measured("attention.flash_triton", "FlashAttentionTriton").apply)
    return lambda q, k, v: apply(q, k, v, problem.is_causal)


def _triton_forward_compiled_backward(problem: AttentionProblem, device: str) -> Attend:
    """Return the course's assignment without its optional part: a Triton forward, a compiled recomputing backward."""
    import torch
    from torch.autograd.function import once_differentiable

    forward_kernel = measured("attention.flash_triton", "flash_forward")
    compiled_backward = measured("attention.flash_pytorch", "compiled_backward")
    _prepare_to_compile()
    scale = problem.d**-0.5

    class TritonForwardCompiledBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            out, lse = forward_kernel(q, k, v, problem.is_causal, scale)
            ctx.save_for_backward(q, k, v, out, lse)
            return out

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad_out: Any) -> Any:
            # Detached, because the compiler reads .grad of each, which warns for a non-leaf.
            saved = (tensor.detach() for tensor in ctx.saved_tensors)
            return compiled_backward()(*saved, grad_out, problem.is_causal, scale)

    return _with_all_heads(TritonForwardCompiledBackward.apply, problem)


def _pytorch(problem: AttentionProblem, device: str) -> Attend:
    function = measured("attention.flash_pytorch", "FlashAttentionPyTorch")
    return _with_all_heads(lambda q, k, v: function.apply(q, k, v, problem.is_causal), problem)


def _pytorch_compiled_backward(problem: AttentionProblem, device: str) -> Attend:
    function = measured("attention.flash_pytorch", "FlashAttentionCompiledBackward")
    _prepare_to_compile()
    return _with_all_heads(lambda q, k, v: function.apply(q, k, v, problem.is_causal), problem)


def _reference(problem: AttentionProblem, device: str) -> Attend:
    eager = measured("attention.reference", "scaled_dot_product_attention")
    return lambda q, k, v: eager(q, k, v, problem.is_causal)


def _reference_compiled(problem: AttentionProblem, device: str) -> Attend:
    fused = compiled(measured("attention.reference", "scaled_dot_product_attention"))
    return lambda q, k, v: fused(q, k, v, problem.is_causal)


def _sdpa(problem: AttentionProblem, device: str) -> Attend:
    """Return SDPA with the backend that torch chooses."""
    import torch.nn.functional as F

    # SDPA uses its slow math backend for three dimensions.
    options: dict[str, Any] = {"is_causal": problem.is_causal, "enable_gqa": problem.is_grouped}
    return _with_heads(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options))


def _sdpa_backend(impl: str) -> Make:
    def make(problem: AttentionProblem, device: str) -> Attend:
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, BACKENDS[impl])
        options: dict[str, Any] = {"is_causal": problem.is_causal, "enable_gqa": problem.is_grouped}

        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel([backend]):  # the backward uses the forward's backend
                return F.scaled_dot_product_attention(q, k, v, **options)

        def attend(q: Any, k: Any, v: Any) -> Any:
            try:
                return call(q, k, v)
            except RuntimeError as error:
                if reason := _refusal(error, lambda: call(q, k, v)):
                    raise Unavailable(f"{impl}: {reason}") from None
                raise

        return _with_heads(attend)

    return make


def _flex(problem: AttentionProblem, device: str) -> Attend:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = problem.seq_len
    mask = create_block_mask(_sees, None, None, n, n, device=device) if problem.is_causal else None
    fused = compiled(flex_attention)
    return _with_heads(lambda q, k, v: fused(q, k, v, block_mask=mask, enable_gqa=problem.is_grouped))


OURS: dict[str, Make] = {
    "flash_attention": _flash_attention,
    "triton": _triton,
    "triton_tf32": _triton_tf32,
    "triton_compiled": _triton_compiled,
    "triton_forward_compiled_backward": _triton_forward_compiled_backward,
    "pytorch": _pytorch,
    "pytorch_compiled_backward": _pytorch_compiled_backward,
    "reference": _reference,
    "reference_compiled": _reference_compiled,
}
PEERS: dict[str, Make] = {
    "sdpa": _sdpa,
    **{impl: _sdpa_backend(impl) for impl in BACKENDS},
    "flex": _flex,
}
"""PyTorch's, which run no code of a commit (`selection.runs_project_code`)."""

IMPLS = OURS | PEERS


def _with_heads(attend: Attend) -> Attend:
    """Adapt a function of (batch, heads, seq_len, d) to (heads, seq_len, d) by views with batch size 1."""

    def wrapped(q: Any, k: Any, v: Any) -> Any:
        if q.ndim == 4:
            return attend(q, k, v)
        return attend(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)).squeeze(0)

    return wrapped


def _with_all_heads(attend: Attend, problem: AttentionProblem) -> Attend:
    """Repeat the heads of k and v for a function that takes as many as q has."""
    if not problem.is_grouped:
        return attend
    repeat_heads = measured("attention.reference", "repeat_heads")
    return lambda q, k, v: attend(q, *repeat_heads(q, k, v))


def _sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
    # At module level, because flex compiles again for every new mask function.
    return query >= key


def _prepare_to_compile() -> None:
    """Allow any number of shapes, and backwards that keep their graph."""
    compile_any_number_of_shapes()
    # A backward that is timed alone runs many times on a graph, so it must not overwrite the forward's saved tensors.
    # A torch that lacks the setting refuses to run it twice.
    set_in("torch._functorch.config", donated_buffer=False)


def _refusal(error: RuntimeError, call: Callable[[], Any]) -> str:
    """Return torch's warnings why SDPA has no kernel for these inputs; "" for any other error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except RuntimeError as again:
            error = again
    head = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if not head.lower().startswith(("no available kernel", "no viable backend")):
        return ""
    texts = [str(warning.message).partition(" (Triggered internally")[0].strip() for warning in caught]
    reasons = [text for text in texts if "not used because" not in text and "disabled" not in text]
    return " ".join(dict.fromkeys([head, *reasons]))
