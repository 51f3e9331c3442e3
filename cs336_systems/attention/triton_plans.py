"""Launches of the Triton kernels, which take all inputs on any GPU: a plan for each layout of q, k and v."""

from typing import Any

import torch
from torch import Tensor

from cs336_systems.attention.dropout import drop_below
from cs336_systems.attention.gpu import launches_early, shared_bytes
from cs336_systems.attention.launch import (
    Backward,
    Forward,
    Launch,
    allocates,
    allocates_float32,
    cdiv,
    launch_in_turn,
    like,
    num_tiles,
    stride_unit,
    strides,
)
from cs336_systems.attention.request import Request
from cs336_systems.attention.tiles import (
    SPLIT_TILES,
    Tiles,
    backward_tiles,
    fitting,
    forward_tiles,
    in_one_loop,
    padded_head_dim,
    tiles_at_once,
)
from cs336_systems.attention.triton_kernels.backward import (
    flash_bwd_at_once_kernel,
    flash_bwd_delta_kernel,
    flash_bwd_dkdv_kernel,
    flash_bwd_dq_kernel,
)
from cs336_systems.attention.triton_kernels.forward import flash_fwd_kernel
from cs336_systems.attention.triton_kernels.forward_split import flash_fwd_combine_kernel, flash_fwd_split_kernel

COMBINE_ROWS = 16
DELTA_TILE_ELEMENTS = 4096  # 32 of out and 32 of do per thread: enough loads in flight to saturate memory


def plain_forward(request: Request, q: Tensor, k: Tensor, v: Tensor, tiles: Tiles | None = None) -> Forward:
    """Plan a forward in one launch, with these tiles or those of `forward_tiles`."""
    tiles = tiles or forward_tiles(request, q, k)
    constants = _constants(request, q, k, tiles) | {"STRIDE_UNIT": stride_unit(q, k, v, like(q))}
    scalars = *strides(q, k, v, like(q)), *_sizes(q, k), request.scale_log2, *_dropout_scalars(request)
    launch = Launch(flash_fwd_kernel, num_tiles(q, tiles.q), scalars, constants)
    new_out, new_lse = allocates(q), allocates_float32(q.shape[:-1], q.device)

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = new_out(q), new_lse()
        launch(q, k, v, out, lse, seed)
        return out, lse

    return run


def split_forward(request: Request, q: Tensor, k: Tensor, v: Tensor, chunk: int, tiles: Tiles | None = None) -> Forward:
    """Plan a forward without dropout over chunks of keys, whose float32 parts a second launch adds."""
    tiles = tiles or fitting(SPLIT_TILES, shared_bytes(q.device))
    constants = _constants(request, q, k, tiles) | {"CHUNK_KEYS": chunk}
    constants["STRIDE_UNIT"] = stride_unit(q, k, v, like(q))
    constants["OVERLAPS"] = overlaps = launches_early(q.device)
    shared = {name: constants[name] for name in ("D", "D_PADDED", "STRIDE_UNIT", "CHUNK_KEYS", "IS_CAUSAL", "OVERLAPS")}
    num_chunks = cdiv(k.shape[2], chunk)
    scalars = *strides(q, k, v), *_sizes(q, k), request.scale_log2
    attend = Launch(flash_fwd_split_kernel, num_chunks * num_tiles(q, tiles.q), scalars, constants)
    combined = *strides(like(q)), *_sizes(q, k)
    shared |= {"ROWS": COMBINE_ROWS, **({"launch_pdl": True} if overlaps else {})}
    combine = Launch(flash_fwd_combine_kernel, num_tiles(q, COMBINE_ROWS), combined, shared)
    new_out, new_lse = allocates(q), allocates_float32(q.shape[:-1], q.device)
    new_parts = allocates_float32((num_chunks, *q.shape), q.device)
    new_part_lse = allocates_float32((num_chunks, *q.shape[:-1]), q.device)

    def run(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse, parts, part_lse = new_out(q), new_lse(), new_parts(), new_part_lse()
        attend(q, k, v, parts, part_lse)
        combine(parts, part_lse, out, lse)
        return out, lse

    return run


def plain_backward(request: Request, q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor) -> Backward:
    """Plan a backward: in one launch if the grid is small, else in three."""
    if tiles := tiles_at_once(q, k):
        return at_once_backward(request, q, k, v, out, do, tiles)
    return two_pass_backward(request, q, k, v, out, do)


def at_once_backward(
    request: Request, q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor, tiles: Tiles
) -> Backward:
    """Plan a backward in one launch."""
    launch = at_once_launch(request, q, k, v, out, do, tiles)
    new_dq, new_dk, new_dv = map(allocates, (q, k, v))

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = new_dq(q), new_dk(k), new_dv(v)
        launch(q, k, v, out, do, lse, dq, dk, dv, seed)
        return dq, dk, dv

    return run


def two_pass_backward(request: Request, q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor) -> Backward:
    """Plan a backward in three launches, for delta, for dk and dv, and for dq."""
    over_rows = delta_launch(out, do)
    keys_tiles, queries_tiles = backward_tiles(q, k)
    over_keys = dkdv_launch(request, q, k, v, do, keys_tiles)
    over_queries = dq_launch(request, q, k, v, do, queries_tiles)
    new_dq, new_dk, new_dv = map(allocates, (q, k, v))

    def run(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv, delta = new_dq(q), new_dk(k), new_dv(v), torch.empty_like(lse)
        launch_in_turn(
            (over_rows, (out, do, delta, None)),
            (over_keys, (q, k, v, do, lse, delta, dk, dv, seed)),
            (over_queries, (q, k, v, do, lse, delta, dq, seed)),
        )
        return dq, dk, dv

    return run


def dkdv_launch(request: Request, q: Tensor, k: Tensor, v: Tensor, do: Tensor, tiles: Tiles) -> Launch:
    """Return the backward's pass over keys, to be called with q, k, v, do, lse, delta, dk, dv, seed."""
    rows = q, k, v, do, like(k), like(v)
    return Launch(
        flash_bwd_dkdv_kernel,
        num_tiles(k, tiles.k),
        (*strides(*rows), *_backward_scalars(request, q, k)),
        _constants(request, q, k, tiles)
        | {
            "STRIDE_UNIT": stride_unit(*rows),
            "ONE_LOOP": in_one_loop(q),
            "EVEN_QUERIES": q.shape[2] % tiles.q == 0,
        },
    )


def dq_launch(request: Request, q: Tensor, k: Tensor, v: Tensor, do: Tensor, tiles: Tiles) -> Launch:
    """Return the backward's pass over queries, to be called with q, k, v, do, lse, delta, dq, seed."""
    rows = q, k, v, do, like(q)
    return Launch(
        flash_bwd_dq_kernel,
        num_tiles(q, tiles.q),
        (*strides(*rows), *_backward_scalars(request, q, k)),
        _constants(request, q, k, tiles) | {"STRIDE_UNIT": stride_unit(*rows), "ONE_LOOP": in_one_loop(q)},
    )


def at_once_launch(request: Request, q: Tensor, k: Tensor, v: Tensor, out: Tensor, do: Tensor, tiles: Tiles) -> Launch:
    """Return both passes side by side, to be called with q, k, v, out, do, lse, dq, dk, dv, seed."""
    rows = q, k, v, out, do, like(q), like(k), like(v)
    return Launch(
        flash_bwd_at_once_kernel,
        num_tiles(k, tiles.k) + num_tiles(q, tiles.q),
        (*strides(*rows), *_backward_scalars(request, q, k)),
        _constants(request, q, k, tiles)
        | {"STRIDE_UNIT": stride_unit(*rows), "EVEN_QUERIES": q.shape[2] % tiles.q == 0},
    )


def delta_launch(out: Tensor, do: Tensor) -> Launch:
    """Return delta = rowsum(out * do), to be called with out, do, delta, and None or a float32 dq, which it zeroes."""
    rows = DELTA_TILE_ELEMENTS // padded_head_dim(out)
    return Launch(
        flash_bwd_delta_kernel,
        num_tiles(out, rows),
        (*strides(out, do), out.shape[1], out.shape[2]),
        {
            "D": out.shape[-1],
            "D_PADDED": padded_head_dim(out),
            "STRIDE_UNIT": stride_unit(out, do),
            "Q_TILE_SIZE": rows,
        },
    )


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int, int]:
    """Return heads, queries, keys."""
    return q.shape[1], q.shape[2], k.shape[2]


def _backward_scalars(request: Request, q: Tensor, k: Tensor) -> tuple[Any, ...]:
    return *_sizes(q, k), request.scale, request.scale_log2, *_dropout_scalars(request)


def _dropout_scalars(request: Request) -> tuple[Any, Any]:
    """Return drop_below and keep_probability, or Nones, which Triton compiles away."""
    return (drop_below(request.dropout), 1.0 - request.dropout) if request.dropout else (None, None)


def _constants(request: Request, q: Tensor, k: Tensor, tiles: Tiles) -> dict[str, Any]:
    return {
        "HEADS_PER_KV_HEAD": q.shape[1] // k.shape[1],
        "D": q.shape[-1],
        "D_PADDED": padded_head_dim(q),
        "Q_TILE_SIZE": tiles.q,
        "K_TILE_SIZE": tiles.k,
        "IS_CAUSAL": request.is_causal,
        "EVEN_KEYS": k.shape[2] % tiles.k == 0,
        "INPUT_PRECISION": request.products,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
