"""Checks of q, k and v."""

import torch
from torch import Tensor

from cs336_systems.checks import require_dense

HEAD_DIMS = (16, 256)  # range of the flash kernels: tl.dot needs 16, and tiles beyond 256 do not fit in registers

_HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
# float64 is for checks; tl.dot on tensor cores does not take it.
_DTYPES = {"triton": _HALF_AND_SINGLE}
_ANY_FLOAT = (*_HALF_AND_SINGLE, torch.float64)


def check_inputs(q: Tensor, k: Tensor, v: Tensor, impl: str) -> None:
    """Raise ValueError, with one line that says what is allowed, unless attention's `impl` takes these."""
    require_dense(q=q, k=k, v=v)
    if q.ndim < 2 or q.ndim != k.ndim or k.shape != v.shape or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"{_shapes(q, k, v)}; allowed: (..., seq_len_q, head_dim) and twice (..., seq_len_k, head_dim)"
        )
    if (k.shape[-2] == 0 and q.shape[-2] > 0) or q.shape[-1] == 0:
        raise ValueError(f"{_shapes(q, k, v)}; allowed: at least one key for queries and a head_dim of at least 1")
    if q.shape[:-2] != k.shape[:-2] and not _grouped(q, k):
        raise ValueError(
            f"{_shapes(q, k, v)}; allowed: the same leading dimensions, or with num_kv_heads a divisor of num_heads "
            "(..., num_heads, seq_len_q, head_dim) and twice (..., num_kv_heads, seq_len_k, head_dim)"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; allowed: one dtype for all")
    dtypes = _DTYPES.get(impl, _ANY_FLOAT)
    if q.dtype not in dtypes:
        raise ValueError(f"q has dtype {q.dtype}; allowed for impl={impl!r}: {', '.join(map(str, dtypes))}")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k, v are on {q.device}, {k.device}, {v.device}; allowed: one device for all")
    lowest, highest = HEAD_DIMS
    if impl in ("pytorch", "triton") and not lowest <= q.shape[-1] <= highest:
        raise ValueError(f"head_dim is {q.shape[-1]}; allowed for impl={impl!r}: {lowest} to {highest}")


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"


def _grouped(q: Tensor, k: Tensor) -> bool:
    return q.ndim >= 4 and q.shape[:-3] == k.shape[:-3] and k.shape[-3] > 0 and q.shape[-3] % k.shape[-3] == 0
