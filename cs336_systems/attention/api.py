"""Entry points of attention, which check their arguments and call the requested implementation."""

import sys

import torch
from torch import Tensor

from cs336_systems.attention.inputs import check_inputs
from cs336_systems.checks import is_int, is_number

IMPLS = ("auto", "reference", "pytorch", "triton", "sdpa")
FP32_PRECISIONS = ("ieee", "tf32", "bf16x3")
_LEAST = 1e-45
"""About the least number that float32 does not round to 0."""


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool = False,
    *,
    impl: str = "auto",
    softmax_scale: float | None = None,
    fp32_precision: str | None = None,
    dropout_p: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Compute softmax(q k^T * softmax_scale) v, without a score matrix unless `impl` is "reference".

    Args:
        q: (..., seq_len_q, head_dim), float32, bfloat16 or float16 (float64 too, except for "triton").
        k: (..., seq_len_k, head_dim), leading dimensions, dtype and device as q. With grouped queries, each head of
            (batch, num_kv_heads, seq_len_k, head_dim) serves num_heads / num_kv_heads consecutive heads of q.
        v: (..., seq_len_k, head_dim), as k. All three may have any strides.
        is_causal: query i sees keys 0 .. i (top-left aligned, also when the lengths differ).
        impl: "reference" (eager), "pytorch" (tiled, any device), "triton" (CUDA, or CPU under Triton's
            interpreter), "sdpa" (torch's own, with the backend that torch chooses); "auto" is "triton" on CUDA and
            "pytorch" elsewhere. A named implementation runs or raises; it never falls back to another.
        softmax_scale: factor on the scores; head_dim ** -0.5 if None.
        fp32_precision: precision of float32 matmuls on the GPU: "ieee" (24 bits), "tf32" (10 bits, or the 16 of
            "bf16x3" where that is faster) or "bf16x3". None follows torch's setting
            (`torch.backends.cuda.matmul.fp32_precision` or its predecessors). Only for "triton"; the other
            implementations follow torch.
        dropout_p: probability in [0, 1) with which each softmax probability becomes 0, forward and backward; the others
            are divided by 1 - dropout_p. A model in eval mode passes 0, which costs nothing. `torch.manual_seed`
            repeats a call. On one device "reference", "pytorch" and "triton" use the same mask
            (`attention.dropout.keep_mask`); "sdpa" uses torch's.
        deterministic: make "triton" on Hopper return bitwise repeatable gradients, from slower kernels. Its outputs,
            its gradients on other GPUs, "reference" and "pytorch" always are repeatable; "sdpa" follows torch's
            setting. `torch.use_deterministic_algorithms(True)` has the same effect.

    Returns:
        (..., seq_len_q, head_dim) in q's dtype, or in autocast's under `torch.autocast`, as torch's own attention. An
        empty batch, no heads or no queries give an empty result and empty or zero gradients.

    Raises:
        ValueError: unknown impl or fp32_precision; dropout_p out of range; softmax_scale no number; mismatched or
            unsupported shapes, dtypes or devices; head_dim outside 16 to 256 for "pytorch" and "triton".
        RuntimeError: in a backward with create_graph=True or is_grads_batched=True, under torch.func's transforms
            and in forward mode, unless impl is "reference", or "sdpa", which raises what the backend does not support.
    """
    if impl not in IMPLS:
        raise ValueError(f"impl is {impl!r}; allowed: {', '.join(IMPLS)}")
    if impl == "auto":
        impl = "triton" if q.is_cuda else "pytorch"
    if fp32_precision is not None and (impl != "triton" or fp32_precision not in FP32_PRECISIONS):
        allowed = f"None, and for impl='triton' {', '.join(FP32_PRECISIONS)}"
        raise ValueError(f"fp32_precision is {fp32_precision!r} and impl {impl!r}; allowed: {allowed}")
    if not is_number(dropout_p) or not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p!r}; allowed: a number from 0 up to, but not, 1")
    if softmax_scale is not None:
        softmax_scale = _checked_scale(softmax_scale)
    if not (isinstance(is_causal, bool) and isinstance(deterministic, bool)):
        types = f"is_causal is of type {type(is_causal)}, deterministic of {type(deterministic)}"
        raise ValueError(f"{types}; allowed: bool, True or False")
    device = "cuda" if q.is_cuda else q.device.type
    if device != "meta" and torch.is_autocast_enabled(device):  # torch 2.11's compiler traces both calls
        q, k, v = _autocast(device, q, k, v)
    if (q is k or k is v or q is v) and torch.compiler.is_compiling():  # which dynamo refuses an autograd.Function
        k, v = k.view_as(k), v.view_as(v)
    if impl == "triton":  # planning checks inputs, once for each layout
        from cs336_systems.attention.flash_triton import FlashAttentionTriton

        if softmax_scale is fp32_precision is None and dropout_p == 0 and not deterministic:
            return FlashAttentionTriton.apply(q, k, v, is_causal)  # torch inspects each argument
        return FlashAttentionTriton.apply(
            q, k, v, is_causal, softmax_scale, fp32_precision, dropout_p, None, deterministic
        )
    check_inputs(q, k, v, impl)
    if impl == "reference":
        from cs336_systems.attention.dropout import dropout_of_call
        from cs336_systems.attention.reference import attention, scaled_dot_product_attention

        dropout = dropout_of_call(dropout_p, None, q.device)
        if dropout is None:
            return scaled_dot_product_attention(q, k, v, is_causal, softmax_scale=softmax_scale)
        return attention(q, k, v, is_causal, softmax_scale=softmax_scale, dropout=dropout)[0]
    if impl == "pytorch":
        from cs336_systems.attention.flash_pytorch import FlashAttentionPyTorch
        from cs336_systems.attention.reference import repeat_heads

        return FlashAttentionPyTorch.apply(q, *repeat_heads(q, k, v), is_causal, softmax_scale, dropout_p)
    return _sdpa(q, k, v, is_causal, softmax_scale, dropout_p)


def flash_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    softmax_scale: float | None = None,
    dropout_p: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Call `flash_attention(impl="triton")` for tensors in (batch, seq_len, num_heads, head_dim) layout.

    Args:
        query: (batch, seq_len_q, num_heads, head_dim), as a linear layer returns it; nothing is copied.
        key: (batch, seq_len_k, num_kv_heads, head_dim).
        value: (batch, seq_len_k, num_kv_heads, head_dim).
        causal: `flash_attention`'s is_causal.
        softmax_scale: see `flash_attention`.
        dropout_p: see `flash_attention`.
        deterministic: see `flash_attention`.

    Returns:
        (batch, seq_len_q, num_heads, head_dim), contiguous if query is.
    """
    return _heads_inside(query, key, value, causal, "triton", softmax_scale, dropout_p, deterministic)


def flash_attention_pytorch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    softmax_scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Call `flash_attention(impl="pytorch")` in the layout of `flash_attention_triton`; always deterministic."""
    return _heads_inside(query, key, value, causal, "pytorch", softmax_scale, dropout_p, False)


def _heads_inside(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool,
    impl: str,
    softmax_scale: float | None,
    dropout_p: float,
    deterministic: bool,
) -> Tensor:
    if not q.ndim == k.ndim == v.ndim == 4:
        dims = f"query, key, value have {q.ndim}, {k.ndim}, {v.ndim} dimensions"
        raise ValueError(f"{dims}; allowed: 4 each, (batch, seq_len, num_heads, head_dim)")
    q4, k4, v4 = (x.transpose(1, 2) for x in (q, k, v))
    try:
        out = flash_attention(
            q4,
            k4,
            v4,
            is_causal,
            impl=impl,
            softmax_scale=softmax_scale,
            dropout_p=dropout_p,
            deterministic=deterministic,
        )
    except ValueError:
        _require_heads_inside(q, k, v)  # whose line names the caller's layout
        raise
    return out.transpose(1, 2)


def _require_heads_inside(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.is_nested or k.is_nested or v.is_nested:
        return  # without a shape
    heads, kv_heads = q.shape[2], k.shape[2]
    fit = heads == kv_heads or (kv_heads > 0 and heads % kv_heads == 0)
    if not (fit and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]):
        raise ValueError(
            f"query, key, value have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; allowed: "
            "(batch, seq_len_q, num_heads, head_dim) and twice (batch, seq_len_k, num_kv_heads, head_dim), "
            "num_kv_heads a divisor of num_heads"
        ) from None


def _checked_scale(softmax_scale: object) -> float:
    if is_int(softmax_scale) and abs(softmax_scale) <= sys.float_info.max:
        return float(softmax_scale)
    if not isinstance(softmax_scale, float) or softmax_scale != softmax_scale:  # NaN
        raise ValueError(f"softmax_scale is {softmax_scale!r}; allowed: a number, which gets no gradient, or None")
    return softmax_scale


def _autocast(device: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast as autocast casts the operands of a matmul: all but float64."""
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, softmax_scale: float | None, dropout_p: float) -> Tensor:
    # Only 4-D inputs reach SDPA's fused backends; 3-D ones fall to its math backend.
    q4, k4, v4 = (x.flatten(0, -4) if x.ndim > 4 else x[(None,) * (4 - x.ndim)] for x in (q, k, v))
    if k4.shape[1] == 0:  # the CUDA backward of torch 2.11 asserts that there are heads, but takes an empty batch
        q4, k4, v4 = (x.transpose(0, 1) for x in (q4, k4, v4))
    grouped = True if q4.shape[1] != k4.shape[1] else False  # noqa: SIM210  # bool() of symbolic sizes stays symbolic
    if softmax_scale is not None and softmax_scale < _LEAST:  # torch masks with -inf before it multiplies, on the CPU
        q4, softmax_scale = (-q4, -softmax_scale) if softmax_scale <= -_LEAST else (q4 * 0, 1.0)
    out = torch.nn.functional.scaled_dot_product_attention(
        q4, k4, v4, dropout_p=dropout_p, is_causal=is_causal, scale=softmax_scale, enable_gqa=grouped
    )
    return out.reshape(q.shape)
