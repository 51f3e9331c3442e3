"""The one entry point: checks its inputs, then hands them to the implementation that was asked for."""

import torch
from torch import Tensor

from cs336_systems.attention.inputs import check_inputs

IMPLS = ("auto", "reference", "pytorch", "triton", "sdpa")
FP32_PRECISIONS = ("ieee", "tf32", "bf16x3")


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
    """softmax(q k^T * softmax_scale) v, without the score matrix unless `impl` says otherwise.

    Args:
        q: (..., seq_len_q, head_dim), float32, bfloat16 or float16 (float64 too, except for "triton").
        k: (..., seq_len_k, head_dim), leading dimensions, dtype and device as q. Grouped queries: of
            (batch, num_kv_heads, seq_len_k, head_dim) each head serves num_heads / num_kv_heads in a row of q's.
        v: (..., seq_len_k, head_dim), as k. Strides are free in all three.
        is_causal: query i sees keys 0 .. i (top-left aligned, also when the lengths differ).
        impl: "reference" (eager), "pytorch" (tiled, any device), "triton" (CUDA, or CPU under Triton's
            interpreter), "sdpa" (torch's own, whichever backend it picks); "auto" is "triton" on CUDA and
            "pytorch" elsewhere. A named implementation runs or raises; it never falls back to another.
        softmax_scale: factor on the scores; head_dim ** -0.5 if None.
        fp32_precision: of float32 products on a GPU: "ieee" (24 bits), "tf32" (10 bits, or the 16 of "bf16x3" where
            these take less time) or "bf16x3"; as torch multiplies matrices if None
            (`torch.backends.cuda.matmul.fp32_precision`, or what was set before there was that). Only "triton" can be
            told; the others multiply as torch does.
        dropout_p: probability, from 0 up to but not 1, with which each softmax probability becomes 0; the others are
            divided by 1 - dropout_p, and the backward drops the same. For training: a model in eval mode passes 0,
            which costs and changes nothing. `torch.manual_seed` repeats a call, and on one device "reference",
            "pytorch" and "triton" then drop the same (the mask is `attention.dropout.keep_mask`); "sdpa" drops as
            torch does.
        deterministic: of "triton" on Hopper: gradients that two calls repeat to the bit, from kernels that are slower.
            The result itself always is, and so are the gradients of "reference" and "pytorch", and of "triton" on
            other GPUs; "sdpa" goes by torch's own setting. `torch.use_deterministic_algorithms(True)` asks for the
            same.

    Returns:
        (..., seq_len_q, head_dim) in q's dtype; under `torch.autocast` in its dtype, as torch's own attention. An empty
        batch, no heads or no queries give an empty result and empty or zero gradients.

    Raises:
        ValueError: unknown impl or fp32_precision; a dropout_p that is no such number; mismatched or unsupported
            shapes, dtypes or devices; head_dim outside 16 to 128 for "pytorch" and "triton".
    """
    if impl not in IMPLS:
        raise ValueError(f"impl is {impl!r}; allowed: {', '.join(IMPLS)}")
    if impl == "auto":
        impl = "triton" if q.is_cuda else "pytorch"
    if fp32_precision is not None and (impl != "triton" or fp32_precision not in FP32_PRECISIONS):
        allowed = f"None, and for impl='triton' {', '.join(FP32_PRECISIONS)}"
        raise ValueError(f"fp32_precision is {fp32_precision!r} and impl {impl!r}; allowed: {allowed}")
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, (float, int)) or not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p!r}; allowed: a number from 0 up to, but not, 1")
    if impl in ("pytorch", "triton"):
        q, k, v = _autocast(q, k, v)
    if impl == "triton":  # which checks them where it plans, once for each layout
        from cs336_systems.attention import flash_triton  # a name from the module would take twice as long

        apply = flash_triton.FlashAttentionTriton.apply
        if softmax_scale is fp32_precision is None and dropout_p == 0 and not deterministic:
            return apply(q, k, v, is_causal)  # torch looks at each argument, for 0.4 us
        return apply(q, k, v, is_causal, softmax_scale, fp32_precision, dropout_p, None, deterministic)
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
    """`flash_attention(impl="triton")` of tensors with their heads inside.

    Args:
        query: (batch, seq_len_q, num_heads, head_dim), as a linear layer leaves it; nothing is copied.
        key: (batch, seq_len_k, num_kv_heads, head_dim).
        value: likewise.
        causal: `flash_attention`'s is_causal.
        softmax_scale: as there.
        dropout_p: as there.
        deterministic: as there.

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
    """`flash_attention_triton` in plain PyTorch, on any device; it always is deterministic."""
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
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = flash_attention(
        q, k, v, is_causal, impl=impl, softmax_scale=softmax_scale, dropout_p=dropout_p, deterministic=deterministic
    )
    return out.transpose(1, 2)


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Cast as torch casts what it multiplies: all but float64."""
    device = "cuda" if q.is_cuda else q.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):  # of which torch 2.11's compiler knows both
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v))


def _sdpa(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, softmax_scale: float | None, dropout_p: float) -> Tensor:
    # Only 4-D inputs reach SDPA's fused backends; 3-D ones fall to its math backend.
    q4, k4, v4 = (x.flatten(0, -4) if x.ndim > 4 else x[(None,) * (4 - x.ndim)] for x in (q, k, v))
    grouped = q4.shape[1] != k4.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        q4, k4, v4, dropout_p=dropout_p, is_causal=is_causal, scale=softmax_scale, enable_gqa=grouped
    )
    return out.reshape(q.shape)
