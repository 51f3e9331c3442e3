"""Choice of the Triton kernels and their tiles by head dimension, dtype, lengths and GPU."""

from typing import NamedTuple

import torch
from torch import Tensor

from cs336_systems.attention import gpu
from cs336_systems.attention.launch import cdiv, num_tiles
from cs336_systems.attention.request import Request


class Tiles(NamedTuple):
    """Rows of q and k in a tile, and Triton's compile options."""

    q: int
    k: int
    num_warps: int
    num_stages: int


# By padded head dimension: (bfloat16 and float16, float32). The fastest tiles measured on an H200 with one head and
# with many, 1024 to 65536 keys (NOTES.md); float32 was measured at 64 and 128, where bf16x6 and tf32 agree (forward at
# 64 on an H100), and 256 was only compiled: these spill least.
# `python -m perf study tiles` measures them again, on this or another GPU.
FORWARD_TILES = {
    16: (Tiles(64, 128, 4, 3), Tiles(64, 64, 4, 3)),
    32: (Tiles(64, 128, 4, 3), Tiles(64, 64, 4, 3)),
    64: (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2)),
    128: (Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 2)),
    256: (Tiles(128, 32, 8, 2), Tiles(16, 32, 4, 2)),
}
DKDV_TILES = {
    16: (Tiles(64, 128, 4, 3), Tiles(32, 64, 4, 2)),
    32: (Tiles(128, 64, 4, 3), Tiles(32, 64, 4, 2)),
    64: (Tiles(64, 64, 4, 3), Tiles(32, 128, 8, 1)),
    128: (Tiles(32, 64, 4, 3), Tiles(32, 128, 8, 1)),
    256: (Tiles(64, 32, 8, 2), Tiles(16, 16, 8, 1)),
}
DQ_TILES = {
    16: (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2)),
    32: (Tiles(64, 128, 4, 3), Tiles(64, 64, 4, 2)),
    64: (Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 1)),
    128: (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 1)),
    256: (Tiles(128, 32, 8, 2), Tiles(16, 16, 8, 1)),
}
SHORT_GRID_TILES = {Tiles(128, 64, 8, 3): Tiles(64, 64, 4, 3)}
"""Replacements where programs are fewer than 2 a multiprocessor: dq of 8192 queries takes 0.64 of the time."""
# Replacements where a block has less than 200 KiB of shared memory (163 at compute capability 8.0), and less than 160
# KiB (99 at 8.6, 8.9 and 12.0). Not tuned.
MEDIUM_TILES = {
    Tiles(128, 64, 8, 2): Tiles(128, 32, 8, 2),
    Tiles(128, 32, 8, 2): Tiles(64, 32, 8, 2),
    Tiles(128, 32, 8, 1): Tiles(64, 32, 8, 2),
    Tiles(32, 128, 8, 1): Tiles(32, 32, 8, 2),
}
SMALLER_TILES = {
    Tiles(64, 64, 4, 3): Tiles(64, 64, 4, 2),
    Tiles(128, 64, 8, 3): Tiles(128, 64, 8, 2),
    Tiles(128, 64, 8, 2): Tiles(64, 32, 8, 2),
    Tiles(128, 64, 8, 1): Tiles(64, 32, 8, 2),
    Tiles(128, 32, 8, 2): Tiles(32, 32, 8, 2),
    Tiles(128, 32, 8, 1): Tiles(32, 32, 8, 2),
    Tiles(64, 32, 8, 2): Tiles(32, 32, 8, 2),
    Tiles(64, 32, 4, 2): Tiles(32, 32, 8, 2),
    Tiles(32, 128, 8, 1): Tiles(32, 32, 8, 2),
}


def tiles_for(q: Tensor, table: dict[int, tuple[Tiles, Tiles]]) -> Tiles:
    """Return a table's tiles for q's head dimension, dtype, rows and device."""
    half, single = table[padded_head_dim(q)]
    tiles = single if q.dtype == torch.float32 else half
    if tiles in SHORT_GRID_TILES and q.numel() // q.shape[-1] < 2 * gpu.multiprocessors(q.device) * tiles.q:
        tiles = SHORT_GRID_TILES[tiles]
    return fitting(tiles, gpu.shared_bytes(q.device))


def fitting(tiles: Tiles, shared_bytes: int) -> Tiles:
    """Return these tiles, or smaller ones for blocks with less shared memory."""
    if shared_bytes >= gpu.MIN_SHARED_BYTES:
        return tiles
    return (MEDIUM_TILES if shared_bytes >= gpu.MIN_SHARED_BYTES_MEDIUM else SMALLER_TILES).get(tiles, tiles)


def padded_head_dim(q: Tensor) -> int:
    """Return the head dimension of tiles: the next power of two, at least 16."""
    padded = 16
    while padded < q.shape[-1]:
        padded *= 2
    return padded


def in_one_loop(q: Tensor) -> bool:
    """Whether the backward visits full and masked tiles in one loop, which compiles in half the time."""
    return q.dtype == torch.float32 and padded_head_dim(q) >= 128


FEW_ROWS_TILES = {32: Tiles(16, 128, 4, 2), 64: Tiles(16, 128, 4, 2), 128: Tiles(16, 64, 4, 2)}
"""Tiles of a float32 forward with few rows, by padded head dimension, where no Gluon kernel is faster."""

FEW_KEYS_TILES = {32: Tiles(64, 16, 4, 2)}
"""Tiles of a float32 backward's pass over few keys: with them one head of 1024 to 4096 takes 0.4 of the time (H200).
It is for calls that no Gluon kernel takes."""


def has_few_rows(q: Tensor) -> bool:
    """Whether tiles of FEW_ROWS_TILES are at most two a multiprocessor."""
    tiles = FEW_ROWS_TILES.get(padded_head_dim(q))
    if q.dtype != torch.float32 or tiles is None:
        return False
    return num_tiles(q, tiles.q) <= 2 * gpu.multiprocessors(q.device)


SHORT_TILES = Tiles(64, 32, 4, 2)
SHORT_KEYS = {False: 256, True: 384}
"""By whether causal, the maximum keys with which a float32 forward of 128 columns takes less time in SHORT_TILES, which
waste fewer rows: 0.73 of the time at 169 keys, 0.95 at 384 causal, but 1.16 at 384 full (H100)."""


def forward_tiles(request: Request, q: Tensor, k: Tensor) -> Tiles:
    """Return the tiles of a forward in one launch."""
    if has_few_rows(q):
        return FEW_ROWS_TILES[padded_head_dim(q)]
    if q.dtype == torch.float32 and padded_head_dim(q) == 128 and k.shape[2] <= SHORT_KEYS[request.is_causal]:
        return fitting(SHORT_TILES, gpu.shared_bytes(q.device))
    return tiles_for(q, FORWARD_TILES)


def backward_tiles(q: Tensor, k: Tensor) -> tuple[Tiles, Tiles]:
    """Return the tiles of a backward's passes over keys and over queries."""
    few = FEW_KEYS_TILES.get(padded_head_dim(q))
    if few and q.dtype == torch.float32 and num_tiles(k, few.k) <= 4 * gpu.multiprocessors(q.device):
        return few, FEW_ROWS_TILES[padded_head_dim(q)]
    return tiles_for(q, DKDV_TILES), tiles_for(q, DQ_TILES)


MAX_PIPELINED_HEAD_DIM = 128
"""The largest head dimension for AT_ONCE_TILES and SPLIT_TILES, whose three stages of 256 exceed the shared memory."""

AT_ONCE_TILES = Tiles(64, 64, 4, 3)
AT_ONCE_MIN_SHARED_BYTES = 160 * 2**10


AT_ONCE_SCORES = {16: 16, 32: 16, 64: 16, 128: 4}
"""By padded head dimension, the maximum tiles of scores a multiprocessor with which one launch takes less time than the
several launches of any other backward (H200)."""

AT_ONCE_KEYS = {16: 32768, 32: 4096}
"""The same for the maximum keys with which one launch takes less time for any number of heads."""


def has_few_scores(q: Tensor, k: Tensor) -> bool:
    """Whether tiles of scores are at most AT_ONCE_SCORES a multiprocessor."""
    scores = num_tiles(q, AT_ONCE_TILES.q) * cdiv(k.shape[2], AT_ONCE_TILES.k)
    return scores <= AT_ONCE_SCORES.get(padded_head_dim(q), 0) * gpu.multiprocessors(q.device)


def tiles_at_once(q: Tensor, k: Tensor) -> Tiles | None:
    """Return tiles for both passes of the backward in one launch, or None if several launches are faster.

    One launch is faster where the programs of both passes run at the same time, or where there is little to do.
    """
    tiles = AT_ONCE_TILES
    programs = sum(x.shape[0] * x.shape[1] * cdiv(x.shape[2], tiles.q) for x in (q, k))
    max_programs = gpu.multiprocessors(q.device) * (1 if q.shape[-1] <= 64 else 2)
    is_short = k.shape[2] <= AT_ONCE_KEYS.get(padded_head_dim(q), 0)
    fits = gpu.shared_bytes(q.device) >= AT_ONCE_MIN_SHARED_BYTES  # its loop over queries holds tiles of out as well
    has_queries = q.shape[2] > 1  # with one query, ptxas of triton 3.6 crashes
    takes = q.dtype != torch.float32 and q.shape[-1] <= MAX_PIPELINED_HEAD_DIM
    is_faster = programs <= max_programs or is_short or has_few_scores(q, k)
    return tiles if takes and is_faster and fits and has_queries else None


SPLIT_TILES = Tiles(64, 64, 4, 3)
MIN_CHUNK = 256


class SplitLimit(NamedTuple):
    """Minimum keys, and maximum tiles of queries a multiprocessor, of a forward that is split over keys."""

    keys: int
    tiles: float


SPLIT_LIMITS = {
    16: (SplitLimit(1024, 1 / 4), SplitLimit(2048, 1), SplitLimit(8192, 2)),
    32: (SplitLimit(1024, 1 / 4), SplitLimit(2048, 1), SplitLimit(8192, 2)),
    64: (SplitLimit(1024, 1 / 2), SplitLimit(2048, 1)),
    128: (SplitLimit(1024, 1 / 4), SplitLimit(2048, 1)),
}
"""By padded head dimension, of which any may hold. At one head of 1024 to 16384 keys (H200) a split takes 0.55 to 0.9
of the time."""


def split_keys(request: Request, q: Tensor, k: Tensor) -> int | None:
    """Return the keys of one program of a split forward, or None if the tiles of queries fill the GPU."""
    limits = SPLIT_LIMITS.get(padded_head_dim(q))
    if request.dropout or q.dtype == torch.float32 or limits is None:
        return None
    tiles, processors = num_tiles(q, SPLIT_TILES.q), gpu.multiprocessors(q.device)
    holds = any(k.shape[2] >= limit.keys and tiles <= limit.tiles * processors for limit in limits)
    return chunk_keys(q, k) if holds else None


def chunk_keys(q: Tensor, k: Tensor) -> int:
    """Return the keys of one program of a split forward.

    At one head of 1024 to 8192 keys (H200) this is the best of 256, 512, 1024 and 2048 or within 10 % of it.
    """
    chunk = MIN_CHUNK
    while chunk < k.shape[2] // (4 if q.shape[-1] >= 64 else 8):
        chunk *= 2
    return chunk
