"""Eager attention, the specification against which every other implementation is tested."""

import torch
from torch import Tensor

from cs336_systems.attention.dropout import Dropout, keep_mask


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool = False,
    *,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention and the log-sum-exp of its scores, with every intermediate materialized.

    Args:
        q: (..., seq_len_q, head_dim), any floating dtype.
        k: (..., seq_len_k, head_dim).
        v: (..., seq_len_k, head_dim). k and v may have fewer heads, the dimension before: see `repeat_heads`.
        is_causal: query i sees keys 0 .. i (top-left aligned, also when the lengths differ).
        softmax_scale: factor on the scores; head_dim ** -0.5 if None.
        dropout: probability and seed of the mask; kept probabilities are divided by 1 - p.

    Returns:
        out: (..., seq_len_q, head_dim) in q's dtype.
        lse: (..., seq_len_q), the natural log of the softmax denominators, dropped probabilities included; float32
            (float64 for float64 input).
    """
    k, v = repeat_heads(q, k, v)
    scores = _scores(q, k, is_causal, softmax_scale)
    lse = scores.to(torch.promote_types(scores.dtype, torch.float32)).logsumexp(dim=-1)
    p = torch.softmax(scores, dim=-1)
    if dropout is not None:
        keep = keep_mask(dropout, p.shape[:-2], range(p.shape[-2]), range(p.shape[-1]))
        p = p * keep / dropout.keep_probability  # a product, so that NaN stays NaN
    return p @ v, lse


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, *, softmax_scale: float | None = None
) -> Tensor:
    """Compute the output of `attention` alone, the eager baseline: a log-sum-exp would add to its time."""
    k, v = repeat_heads(q, k, v)
    return torch.softmax(_scores(q, k, is_causal, softmax_scale), dim=-1) @ v


def repeat_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat the heads of k and v for grouped-query attention, where each serves as many consecutive heads of q."""
    if q.ndim < 3 or q.shape[-3] == k.shape[-3]:
        return k, v
    heads_per_kv_head = q.shape[-3] // k.shape[-3]
    return k.repeat_interleave(heads_per_kv_head, -3), v.repeat_interleave(heads_per_kv_head, -3)


def _scores(q: Tensor, k: Tensor, is_causal: bool, softmax_scale: float | None) -> Tensor:
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = q @ k.transpose(-1, -2) * scale
    if not is_causal:
        return scores
    rows = torch.arange(q.shape[-2], device=q.device)
    columns = torch.arange(k.shape[-2], device=q.device)
    # Every row sees at least key 0, so -inf never leaves a row without a maximum.
    return scores.masked_fill(rows[:, None] < columns, float("-inf"))
