"""FlashAttention-2 in plain PyTorch: Algorithms 1 and 2 of Dao (2023), tile by tile, on any device.

The code follows the paper and runs where Triton does not. No n x n matrix exists at any time.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.dropout import Dropout, dropout_of_call, keep_mask
from cs336_systems.differentiation import require_one_derivative

# Launches dominate the time, not arithmetic, so tiles are as large as the paper's; results hold for any size.
Q_TILE_SIZE = 128
K_TILE_SIZE = 128


class FlashAttentionPyTorch(torch.autograd.Function):
    """FlashAttention-2, forward and backward tiled in PyTorch: `apply(q, k, v, is_causal=False, softmax_scale=None,
    dropout_p=0.0, dropout_seed=None) -> out`.

    q is (..., seq_len_q, head_dim), k and v are (..., seq_len_k, head_dim), of one floating dtype, with any
    strides; out is shaped like q. Matrix products take the inputs' dtype; their sums, scores and softmax are
    float32 (float64 for float64 inputs). With dropout_p the backward drops what the forward dropped, by
    `dropout_seed`, (1,) and int64, or a new seed. Saved for the backward: q, k, v, out, the natural-log
    log-sum-exp, (..., seq_len_q), and the seed if there is one. `flash_attention` of `api.py` checks its inputs;
    this class does not.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        softmax_scale: float | None = None,
        dropout_p: float = 0.0,
        dropout_seed: Tensor | None = None,
    ) -> Tensor:
        """Run Algorithm 1."""
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        with _without_autocast(q):
            dropout = dropout_of_call(dropout_p, dropout_seed, q.device)
            out, lse = tiled_forward(q, k, v, is_causal, scale, dropout)
        ctx.save_for_backward(q, k, v, out, lse, *([] if dropout is None else [dropout.seed]))
        ctx.is_causal, ctx.scale, ctx.dropout_p = is_causal, scale, dropout_p
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Run Algorithm 2."""
        require_one_derivative("flash attention", "impl='reference'")
        q, k, v, out, lse, *seed = ctx.saved_tensors
        dropout = Dropout(ctx.dropout_p, *seed) if seed else None
        with _without_autocast(q):
            grads = tiled_backward(q, k, v, out, lse, grad_out, ctx.is_causal, ctx.scale, dropout)
        return *grads, None, None, None, None


class FlashAttentionCompiledBackward(FlashAttentionPyTorch):
    """FlashAttention-2 with a backward that recomputes all scores at once, through `torch.compile`.

    The course's default, kept as a baseline. It needs memory for several n x n matrices, skips no causal tile and
    takes no dropout.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        softmax_scale: float | None = None,
        dropout_p: float = 0.0,
    ) -> Tensor:
        """Run Algorithm 1, or raise ValueError for any dropout."""
        if dropout_p != 0:
            raise ValueError(f"dropout_p is {dropout_p}; allowed for FlashAttentionCompiledBackward: 0")
        return FlashAttentionPyTorch.forward(ctx, q, k, v, is_causal, softmax_scale)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Run equations 13 to 19 of the course's handout, fused by torch's compiler."""
        require_one_derivative("flash attention", "impl='reference'")
        # Detached, because the compiler reads .grad of each tensor, which warns for out, a non-leaf.
        q, k, v, out, lse = (x.detach() for x in ctx.saved_tensors)
        with _without_autocast(q):
            return *compiled_backward()(q, k, v, out, lse, grad_out, ctx.is_causal, ctx.scale), None, None, None


def _without_autocast(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Turn off autocast, which would round float32 sums; the device "meta" has none."""
    return contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def tiled_forward(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float, dropout: Dropout | None = None
) -> tuple[Tensor, Tensor]:
    """Run Algorithm 1: return out like q, and lse (..., seq_len_q) in float32 (float64 for float64 inputs)."""
    seq_len_q, seq_len_k = q.shape[-2], k.shape[-2]
    sum_dtype = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=sum_dtype, device=q.device)

    for q_start in range(0, seq_len_q, Q_TILE_SIZE):
        q_end = min(q_start + Q_TILE_SIZE, seq_len_q)
        q_tile = q[..., q_start:q_end, :]
        acc = torch.zeros(q_tile.shape, dtype=sum_dtype, device=q.device)
        row_sum = torch.zeros(q_tile.shape[:-1], dtype=sum_dtype, device=q.device)
        # The minimum finite number: after a tile of scores that are all -inf, -inf - -inf would be NaN.
        row_max = torch.full_like(row_sum, torch.finfo(sum_dtype).min)
        for k_start in range(0, min(seq_len_k, q_end) if is_causal else seq_len_k, K_TILE_SIZE):
            k_end = min(k_start + K_TILE_SIZE, seq_len_k)
            k_tile, v_tile = k[..., k_start:k_end, :], v[..., k_start:k_end, :]
            scores = _masked_scores(q_tile, k_tile, q_start - k_start, is_causal, scale)
            new_max = torch.maximum(row_max, scores.amax(dim=-1))
            rescale = torch.exp(row_max - new_max)
            p = torch.exp(scores - new_max[..., None])
            row_sum = rescale * row_sum + p.sum(dim=-1)  # with dropped probabilities: it is the softmax's denominator
            if dropout is not None:
                p = p * _z(dropout, q.shape[:-2], range(q_start, q_end), range(k_start, k_end), p.dtype)
            acc = rescale[..., None] * acc + _product(p.to(v.dtype), v_tile)
            row_max = new_max
        out[..., q_start:q_end, :] = acc / row_sum[..., None]
        lse[..., q_start:q_end] = row_max + torch.log(row_sum)
    return out, lse


def tiled_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    is_causal: bool,
    scale: float,
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run Algorithm 2: return dq, dk, dv, shaped like q, k, v."""
    seq_len_q, seq_len_k = q.shape[-2], k.shape[-2]
    delta = _delta(out, grad_out, lse.dtype)
    dq = torch.zeros(q.shape, dtype=lse.dtype, device=q.device)
    dk, dv = torch.empty_like(k), torch.empty_like(v)

    for k_start in range(0, seq_len_k, K_TILE_SIZE):
        k_end = min(k_start + K_TILE_SIZE, seq_len_k)
        keys = slice(k_start, k_end)
        k_tile, v_tile = k[..., keys, :], v[..., keys, :]
        dk_tile = torch.zeros(k_tile.shape, dtype=lse.dtype, device=k.device)
        dv_tile = torch.zeros_like(dk_tile)
        # A causal query sees no key behind itself: start with the tile that holds query k_start.
        first = k_start // Q_TILE_SIZE * Q_TILE_SIZE if is_causal else 0
        for q_start in range(first, seq_len_q, Q_TILE_SIZE):
            q_end = min(q_start + Q_TILE_SIZE, seq_len_q)
            rows = slice(q_start, q_end)
            z = None
            if dropout is not None:
                z = _z(dropout, q.shape[:-2], range(q_start, q_end), range(k_start, k_end), lse.dtype)
            dq_part, dk_part, dv_part = _tile_gradients(
                q[..., rows, :], k_tile, v_tile, grad_out[..., rows, :], lse[..., rows], delta[..., rows],
                q_start - k_start, is_causal, scale, z,
            )  # fmt: skip
            dq[..., rows, :] += dq_part
            dk_tile += dk_part
            dv_tile += dv_part
        dk[..., keys, :] = dk_tile
        dv[..., keys, :] = dv_tile
    return dq.to(q.dtype), dk, dv


def recompute_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the backward as one tile that covers all scores."""
    delta = _delta(out, grad_out, lse.dtype)
    dq, dk, dv = _tile_gradients(q, k, v, grad_out, lse, delta, 0, is_causal, scale)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


@functools.cache
def compiled_backward() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Compile `recompute_backward` with `torch.compile`, once; each new shape compiles anew (1 to 2 s).

    Shapes are static, as a benchmark of one shape requires. torch stops compiling after 8 shapes in a process
    (`torch._dynamo.config.recompile_limit`), with a warning.
    """
    return torch.compile(recompute_backward, dynamic=False)


def _masked_scores(q: Tensor, k: Tensor, offset: int, is_causal: bool, scale: float) -> Tensor:
    """Compute scores of one tile; `offset` is the index of its first query minus that of its first key."""
    scores = _product(q, k.transpose(-1, -2)) * scale
    if not is_causal or offset >= k.shape[-2] - 1:
        return scores
    rows = torch.arange(q.shape[-2], device=q.device) + offset
    columns = torch.arange(k.shape[-2], device=q.device)
    return scores.masked_fill(rows[:, None] < columns, float("-inf"))


def _delta(out: Tensor, grad_out: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rowsum(out * grad_out), which equals rowsum(p * dp) without the n x n matrices."""
    return (out.to(dtype) * grad_out.to(dtype)).sum(dim=-1)


def _tile_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    lse: Tensor,
    delta: Tensor,
    offset: int,
    is_causal: bool,
    scale: float,
    z: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the contributions of one tile of scores to dq, dk and dv; `z` is its dropout."""
    p = torch.exp(_masked_scores(q, k, offset, is_causal, scale) - lse[..., None])
    kept_p = p if z is None else p * z
    dv = _product(kept_p.to(q.dtype).transpose(-1, -2), grad_out)
    dp = _product(grad_out, v.transpose(-1, -2))
    dp = dp if z is None else dp * z
    ds = (p * (dp - delta[..., None]) * scale).to(q.dtype)
    return _product(ds, k), _product(ds.transpose(-1, -2), q), dv


def _z(dropout: Dropout, leading: torch.Size, rows: range, columns: range, dtype: torch.dtype) -> Tensor:
    """Return the factors of a tile's probabilities, 0 or 1 / (1 - p): Z in the FlashAttention paper's Algorithm 4."""
    return keep_mask(dropout, leading, rows, columns).to(dtype) / dropout.keep_probability


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in at least float32: dp - delta cancels, which leaves no correct bits of a bfloat16 dp."""
    if a.dtype not in (torch.bfloat16, torch.float16):
        return a @ b
    if not a.is_cuda:
        return a.float() @ b.float()
    a3, b3 = (x.reshape(-1, *x.shape[-2:]) for x in (a, b))
    return torch.bmm(a3, b3, out_dtype=torch.float32).reshape(*a.shape[:-1], b.shape[-1])
