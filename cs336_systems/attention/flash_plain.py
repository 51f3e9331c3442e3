"""How the plain kernels, which take all inputs on any GPU, are launched: a plan for each layout of q, k and v.

Tensors are (batch, heads, seq_len, d), each head vector in one piece; `like` keeps it so in what is allocated.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cs336_systems.attention.dropout import Dropout
from cs336_systems.attention.launch import Launch, cdiv, compile_side_by_side
from cs336_systems.attention.tile_choices import (
    DKDV_TILES,
    DQ_TILES,
    FORWARD_TILES,
    SPLIT_TILES,
    Tiles,
    fitting,
    in_one_loop,
    padded_head_dim,
    shared_bytes,
    tiles_at_once,
    tiles_for,
)
from cs336_systems.attention.triton_kernels.backward import (
    flash_bwd_at_once_kernel,
    flash_bwd_delta_kernel,
    flash_bwd_dkdv_kernel,
    flash_bwd_dq_kernel,
)
from cs336_systems.attention.triton_kernels.forward import flash_fwd_kernel
from cs336_systems.attention.triton_kernels.forward_split import flash_fwd_combine_kernel, flash_fwd_split_kernel

# exp(x) is exp2(x * log2(e)), and exp2 is what the hardware has: folding the factor into the scale of the scores
# saves a multiplication per score.
LOG2_E = math.log2(math.e)


class Options(NamedTuple):
    """What a call asks for, besides its tensors; `input_precision` is tl.dot's."""

    is_causal: bool
    scale: float
    input_precision: str = "ieee"
    dropout: Dropout | None = None

    @property
    def scale_log2(self) -> float:
        """Of scores in base 2."""
        return self.scale * LOG2_E


ForwardPlan = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(q, k, v, the dropout's seed) -> out, lse in float32."""

BackwardPlan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]
"""(q, k, v, out, lse, the gradient of out, the dropout's seed) -> dq, dk, dv."""

COMBINE_ROWS = 16
DELTA_TILE_ELEMENTS = 4096  # 32 of out and 32 of do a thread: enough loads in flight to be bound by memory


def plan_forward(q: Tensor, k: Tensor, v: Tensor, options: Options, tiles: Tiles | None = None) -> ForwardPlan:
    """One launch; `tiles` are FORWARD_TILES' if None."""
    tiles = tiles or tiles_for(q, FORWARD_TILES)
    launch = Launch(
        flash_fwd_kernel,
        _num_tiles(q, tiles.q),
        (*_strides(q, k, v, like(q)), *_sizes(q, k), options.scale_log2, *_of_dropout(options.dropout)),
        _constants(q, k, options, tiles),
    )
    like_q, like_lse = allocates(q), lse_like(q)

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out = like_q(q)
        lse = torch.empty_like(like_lse)
        launch(q, k, v, out, lse, seed)
        return out, lse

    return run


def plan_split_forward(
    q: Tensor, k: Tensor, v: Tensor, options: Options, chunk: int, tiles: Tiles | None = None
) -> ForwardPlan:
    """Parts over `chunk` keys each, held in float32, then their sum; no dropout. `tiles` are SPLIT_TILES if None."""
    num_chunks = cdiv(k.shape[2], chunk)
    tiles = tiles or fitting(SPLIT_TILES, shared_bytes(q.device))
    attend = Launch(
        flash_fwd_split_kernel,
        num_chunks * _num_tiles(q, tiles.q),
        (*_strides(q, k, v), *_sizes(q, k), options.scale_log2),
        _constants(q, k, options, tiles) | {"CHUNK_KEYS": chunk},
    )
    combine = Launch(
        flash_fwd_combine_kernel,
        _num_tiles(q, COMBINE_ROWS),
        (*_strides(like(q)), *_sizes(q, k)),
        {
            "D": q.shape[-1],
            "D_PADDED": padded_head_dim(q),
            "ROWS": COMBINE_ROWS,
            "CHUNK_KEYS": chunk,
            "IS_CAUSAL": options.is_causal,
        },
    )
    like_lse = lse_like(q)
    parts_shape = num_chunks, *q.shape

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out = like(q)
        lse = torch.empty_like(like_lse)
        parts = torch.empty(*parts_shape, dtype=torch.float32, device=q.device)
        part_lse = torch.empty(*parts_shape[:-1], dtype=torch.float32, device=q.device)
        attend(q, k, v, parts, part_lse)
        combine(parts, part_lse, out, lse)
        return out, lse

    return run


def plan_backward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor, options: Options) -> BackwardPlan:
    """One launch if a few tiles are all that there is; else delta, dk and dv, dq."""
    if tiles := tiles_at_once(q, k):
        at_once = launch_at_once(q, k, v, out, do, options, tiles)
        like_q, like_k, like_v = allocates(q), allocates(k), allocates(v)

        def run_at_once(
            q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
        ) -> tuple[Tensor, Tensor, Tensor]:
            dq, dk, dv = like_q(q), like_k(k), like_v(v)
            at_once(q, k, v, out, do, lse, dq, dk, dv, seed)
            return dq, dk, dv

        return run_at_once

    delta_of = plan_delta(out, do)
    of_keys = launch_dkdv(q, k, v, do, options, tiles_for(q, DKDV_TILES))
    of_queries = launch_dq(q, k, v, do, options, tiles_for(q, DQ_TILES))

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = like(q), like(k), like(v)
        delta = delta_of(out, do, lse)
        for_keys = q, k, v, do, lse, delta, dk, dv, seed
        for_queries = q, k, v, do, lse, delta, dq, seed
        compile_side_by_side((of_keys, for_keys), (of_queries, for_queries))
        of_keys(*for_keys)
        of_queries(*for_queries)
        return dq, dk, dv

    return run


def launch_dkdv(q: Tensor, k: Tensor, v: Tensor, do: Tensor, options: Options, tiles: Tiles) -> Launch:
    """The backward's pass over keys; called with q, k, v, do, lse, delta, dk, dv, seed."""
    return Launch(
        flash_bwd_dkdv_kernel,
        _num_tiles(k, tiles.k),
        (*_strides(q, k, v, do, like(k), like(v)), *_of_gradients(q, k, options)),
        _constants(q, k, options, tiles) | {"ONE_LOOP": in_one_loop(q), "EVEN_QUERIES": q.shape[2] % tiles.q == 0},
    )


def launch_dq(q: Tensor, k: Tensor, v: Tensor, do: Tensor, options: Options, tiles: Tiles) -> Launch:
    """The backward's pass over queries; called with q, k, v, do, lse, delta, dq, seed."""
    return Launch(
        flash_bwd_dq_kernel,
        _num_tiles(q, tiles.q),
        (*_strides(q, k, v, do, like(q)), *_of_gradients(q, k, options)),
        _constants(q, k, options, tiles) | {"ONE_LOOP": in_one_loop(q)},
    )


def launch_at_once(q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor, options: Options, tiles: Tiles) -> Launch:
    """Both passes beside one another; called with q, k, v, out, do, lse, dq, dk, dv, seed."""
    return Launch(
        flash_bwd_at_once_kernel,
        _num_tiles(k, tiles.k) + _num_tiles(q, tiles.q),
        (*_strides(q, k, v, out, do, like(q), like(k), like(v)), *_of_gradients(q, k, options)),
        _constants(q, k, options, tiles) | {"EVEN_QUERIES": q.shape[2] % tiles.q == 0},
    )


def plan_delta(out: Tensor, do: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """(out, do, lse) -> rowsum(out * do), like lse."""
    rows = DELTA_TILE_ELEMENTS // padded_head_dim(out)
    launch = Launch(
        flash_bwd_delta_kernel,
        _num_tiles(out, rows),
        (*_strides(out, do), out.shape[1], out.shape[2]),
        {"D": out.shape[-1], "D_PADDED": padded_head_dim(out), "Q_TILE_SIZE": rows},
    )

    def run(out: Tensor, do: Tensor, lse: Tensor) -> Tensor:
        delta = torch.empty_like(lse)
        launch(out, do, delta)
        return delta

    return run


def allocates(x: Tensor) -> Callable[[Tensor], Tensor]:
    """`like` of tensors laid out as x, in one call of torch where that is enough."""
    return torch.empty_like if torch.empty_like(x, device="meta").stride(-1) == 1 else like


def lse_like(q: Tensor) -> Tensor:
    """One number in the shape of the log-sum-exp: `torch.empty_like` takes two thirds of the time of `torch.empty`."""
    return torch.empty(1, dtype=torch.float32, device=q.device).expand(q.shape[:-1])


def like(x: Tensor) -> Tensor:
    """Uninitialized, strides as x's where each head vector is in one piece then too."""
    empty = torch.empty_like(x)
    return empty if empty.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Of (batch, heads, seq_len) each: that of d is 1."""
    return tuple(stride for x in tensors for stride in x.stride()[:-1])


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int, int]:
    """Heads, queries, keys."""
    return q.shape[1], q.shape[2], k.shape[2]


def _num_tiles(x: Tensor, rows: int) -> int:
    batch, num_heads, seq_len, _ = x.shape
    return cdiv(seq_len, rows) * batch * num_heads


def _of_gradients(q: Tensor, k: Tensor, options: Options) -> tuple[Any, ...]:
    return *_sizes(q, k), options.scale, options.scale_log2, *_of_dropout(options.dropout)


def _constants(q: Tensor, k: Tensor, options: Options, tiles: Tiles) -> dict[str, Any]:
    return {
        "HEADS_PER_KV_HEAD": q.shape[1] // k.shape[1],
        "D": q.shape[-1],
        "D_PADDED": padded_head_dim(q),
        "Q_TILE_SIZE": tiles.q,
        "K_TILE_SIZE": tiles.k,
        "IS_CAUSAL": options.is_causal,
        "EVEN_KEYS": k.shape[2] % tiles.k == 0,
        "INPUT_PRECISION": options.input_precision,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }


def _of_dropout(dropout: Dropout | None) -> tuple[Any, Any]:
    """drop_below, keep_probability: Triton compiles None away, so that no dropout costs nothing."""
    return (None, None) if dropout is None else (dropout.drop_below, dropout.keep_probability)
