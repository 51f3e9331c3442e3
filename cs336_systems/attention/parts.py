"""Parts that the plans of all kernels share: types, outputs, sizes, delta.

Tensors are (batch, heads, seq_len, d) with contiguous head vectors, and so are outputs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cs336_systems.attention.launch import Launch, cdiv
from cs336_systems.attention.tiles import padded_head_dim
from cs336_systems.attention.triton_kernels.backward import flash_bwd_delta_kernel

Forward = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(q, k, v, seed of the dropout) -> out, lse in float32."""

Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]
"""(q, k, v, out, lse, gradient of out, seed of the dropout) -> dq, dk, dv."""

DELTA_TILE_ELEMENTS = 4096  # 32 of out and 32 of do per thread: enough loads in flight to saturate memory


def like(x: Tensor) -> Tensor:
    """Allocate a tensor with x's strides, or contiguous where these would scatter head vectors."""
    empty = torch.empty_like(x)
    return empty if empty.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def new_lse(q: Tensor) -> Tensor:
    """Allocate the log-sum-exp of q's rows."""
    return torch.empty(*q.shape[:-1], dtype=torch.float32, device=q.device)


def strides(*tensors: Tensor) -> tuple[int, ...]:
    """Return the strides of batch, heads and seq_len of each tensor; that of d is 1."""
    return tuple(stride for x in tensors for stride in x.stride()[:-1])


def num_tiles(x: Tensor, rows: int) -> int:
    """Return the number of tiles of so many rows in all heads."""
    batch, num_heads, seq_len, _ = x.shape
    return cdiv(seq_len, rows) * batch * num_heads


def delta_launch(out: Tensor, do: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function (out, do, lse) -> rowsum(out * do), shaped like lse."""
    rows = DELTA_TILE_ELEMENTS // padded_head_dim(out)
    launch = Launch(
        flash_bwd_delta_kernel,
        num_tiles(out, rows),
        (*strides(out, do), out.shape[1], out.shape[2]),
        {"D": out.shape[-1], "D_PADDED": padded_head_dim(out), "Q_TILE_SIZE": rows},
    )

    def run(out: Tensor, do: Tensor, lse: Tensor) -> Tensor:
        delta = torch.empty_like(lse)
        launch(out, do, delta)
        return delta

    return run
