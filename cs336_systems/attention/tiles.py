"""Choice of kernels and tiles by head dimension, dtype, lengths and GPU.

Of a GPU they depend on the shared memory of a block, the number of multiprocessors and the compute capability.
"""

import functools
import importlib
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from cs336_systems.attention.constants import WGMMA_ROWS
from cs336_systems.attention.launch import cdiv, num_tiles
from cs336_systems.attention.private import constant_to_compiler, warn_once
from cs336_systems.attention.request import Request


class Tiles(NamedTuple):
    """Rows of q and k in a tile, and Triton's compile options."""

    q: int
    k: int
    num_warps: int
    num_stages: int


# By padded head dimension: (bfloat16 and float16, float32). The fastest tiles measured on an H200 with one head and
# with many, 1024 to 65536 keys (NOTES.md); float32 was measured at 64 and 128, where bf16x6 and tf32 agree, and 256 was
# only compiled: these spill least.
# `python -m perf study tiles` measures them again, on this or another GPU.
FORWARD_TILES = {
    16: (Tiles(64, 128, 4, 3), Tiles(64, 64, 4, 3)),
    32: (Tiles(64, 128, 4, 3), Tiles(64, 64, 4, 3)),
    64: (Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 2)),
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
    Tiles(32, 128, 8, 1): Tiles(32, 32, 8, 2),
}
MIN_SHARED_BYTES = 200 * 2**10
MIN_SHARED_BYTES_MEDIUM = 160 * 2**10


def tiles_for(q: Tensor, table: dict[int, tuple[Tiles, Tiles]]) -> Tiles:
    """Return a table's tiles for q's head dimension, dtype, rows and device."""
    half, single = table[padded_head_dim(q)]
    tiles = single if q.dtype == torch.float32 else half
    if tiles in SHORT_GRID_TILES and q.numel() // q.shape[-1] < 2 * multiprocessors(q.device) * tiles.q:
        tiles = SHORT_GRID_TILES[tiles]
    return fitting(tiles, shared_bytes(q.device))


def fitting(tiles: Tiles, shared_bytes: int) -> Tiles:
    """Return these tiles, or smaller ones for blocks with less shared memory."""
    if shared_bytes >= MIN_SHARED_BYTES:
        return tiles
    return (MEDIUM_TILES if shared_bytes >= MIN_SHARED_BYTES_MEDIUM else SMALLER_TILES).get(tiles, tiles)


@constant_to_compiler
def multiprocessors(device: torch.device) -> int:
    """Return the multiprocessors of a GPU; 0 on the CPU, where Triton's interpreter runs programs one by one."""
    return _multiprocessors_of_gpu(device) if device.type == "cuda" else 0


@functools.cache
def _multiprocessors_of_gpu(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@constant_to_compiler
def shared_bytes(device: torch.device) -> int:
    """Return the maximum shared memory of a block; Triton's interpreter has no limit."""
    return _shared_bytes_of_gpu(device) if device.type == "cuda" else MIN_SHARED_BYTES


@functools.cache
def _shared_bytes_of_gpu(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", MIN_SHARED_BYTES_MEDIUM))


@constant_to_compiler
def l2_bytes(device: torch.device) -> int:
    """Return the size of a GPU's L2 cache; 0 on the CPU."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


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
"""Tiles of a float32 forward with few rows, by padded head dimension: one head of 1024 takes 0.72 to 0.82 of the time
of the Gluon kernel, which takes 128 rows a program (H200)."""

FEW_KEYS_TILES = {32: Tiles(64, 16, 4, 2)}
"""Tiles of a float32 backward's pass over few keys: with them one head of 1024 to 4096 takes 0.4 of the time (H200).
From d = 64 on the Gluon kernel is faster."""


def has_few_rows(q: Tensor) -> bool:
    """Whether tiles of FEW_ROWS_TILES are at most two a multiprocessor."""
    tiles = FEW_ROWS_TILES.get(padded_head_dim(q))
    if q.dtype != torch.float32 or tiles is None:
        return False
    return num_tiles(q, tiles.q) <= 2 * multiprocessors(q.device)


def forward_tiles(q: Tensor) -> Tiles:
    """Return the tiles of a forward in one launch."""
    return FEW_ROWS_TILES[padded_head_dim(q)] if has_few_rows(q) else tiles_for(q, FORWARD_TILES)


def backward_tiles(q: Tensor, k: Tensor) -> tuple[Tiles, Tiles]:
    """Return the tiles of a backward's passes over keys and over queries."""
    few = FEW_KEYS_TILES.get(padded_head_dim(q))
    if few and q.dtype == torch.float32 and num_tiles(k, few.k) <= 4 * multiprocessors(q.device):
        return few, FEW_ROWS_TILES[padded_head_dim(q)]
    return tiles_for(q, DKDV_TILES), tiles_for(q, DQ_TILES)


MAX_PIPELINED_HEAD_DIM = 128
"""The largest head dimension for AT_ONCE_TILES and SPLIT_TILES, whose three stages of 256 exceed the shared memory."""

AT_ONCE_TILES = Tiles(64, 64, 4, 3)
AT_ONCE_MIN_SHARED_BYTES = 160 * 2**10


def tiles_at_once(q: Tensor, k: Tensor) -> Tiles | None:
    """Return tiles for both passes of the backward in one launch, or None if two launches are faster.

    One launch is faster where the programs of both passes run at the same time.
    """
    tiles = AT_ONCE_TILES
    programs = sum(x.shape[0] * x.shape[1] * cdiv(x.shape[2], tiles.q) for x in (q, k))
    max_programs = multiprocessors(q.device) * (1 if q.shape[-1] <= 64 else 2)
    fits = shared_bytes(q.device) >= AT_ONCE_MIN_SHARED_BYTES  # its loop over queries holds tiles of out as well
    has_queries = q.shape[2] > 1  # with one query, ptxas of triton 3.6 crashes
    takes = q.dtype != torch.float32 and q.shape[-1] <= MAX_PIPELINED_HEAD_DIM
    return tiles if takes and programs <= max_programs and fits and has_queries else None


SPLIT_TILES = Tiles(64, 64, 4, 3)
MIN_CHUNK = 256
MIN_SPLIT_KEYS = 2048
"""At 1024 keys the second launch costs more than the split saves."""


def split_keys(request: Request, q: Tensor, k: Tensor) -> int | None:
    """Return the keys of one program of a split forward, or None if the tiles of queries fill the GPU.

    At one head of 1024 to 8192 keys (H200) this is the best of 256, 512, 1024 and 2048 or within 10 % of it, and takes
    0.55 to 0.9 of the time without a split.
    """
    if request.dropout or q.dtype == torch.float32 or q.shape[-1] > MAX_PIPELINED_HEAD_DIM:
        return None
    tiles = q.shape[0] * q.shape[1] * cdiv(q.shape[2], SPLIT_TILES.q)
    seq_len_k = k.shape[2]
    if tiles > multiprocessors(q.device) or seq_len_k < MIN_SPLIT_KEYS:
        return None
    chunk = MIN_CHUNK
    while chunk < seq_len_k // (4 if q.shape[-1] >= 64 else 8):
        chunk *= 2
    return chunk


class HopperForward(NamedTuple):
    """Compile-time choices of the 16-bit forward in Gluon; `registers` are those of a consumer's thread."""

    k_tile: int
    stages: int
    q_stages: int
    consumers: int
    registers: int

    @property
    def rows(self) -> int:
        """Rows of q in a tile of a program."""
        return WGMMA_ROWS * self.consumers


class HopperBackward(NamedTuple):
    """Compile-time choices of the 16-bit backward in Gluon."""

    q_tile: int
    stages: int
    ds_stages: int
    registers: int
    dq_registers: int = 0
    """Registers of a thread of dq's warp group, which only the kernel for up to 64 columns has."""


class HopperFloat32(NamedTuple):
    """Compile-time choices of the Gluon kernels over bfloat16 pieces of float32."""

    pieces: int
    stages: int
    registers: int


# By padded head dimension, the fastest choices measured on an H200 (NOTES.md). With triton 3.6 and 3.7 nothing spills
# but some 30 registers in the causal backward of d = 128, before its loop.
HOPPER_FORWARD = {64: HopperForward(128, 2, 2, 2, 240), 128: HopperForward(128, 2, 1, 2, 240)}
HOPPER_FORWARD_MANY = {64: HopperForward(64, 4, 2, 4, 112)}
"""Replacements where each multiprocessor gets HOPPER_MANY of their tiles, so that large ones balance."""
HOPPER_BACKWARD = {64: HopperBackward(64, 3, 2, 200, 88), 128: HopperBackward(64, 2, 2, 240)}
HOPPER_FLOAT32 = {
    (64, 2): HopperFloat32(2, 2, 216),
    (64, 3): HopperFloat32(3, 2, 216),
    (128, 2): HopperFloat32(2, 2, 232),
    (128, 3): HopperFloat32(3, 1, 232),
}
"""By head dimension and pieces; with three pieces the fastest choices measured on an H200 (NOTES.md)."""
PIECES = {"bf16x6": 3, "bf16x3": 2, "tf32": 2}
"""Pieces by the request's products. Two pieces hold more bits than TF32, 16 instead of 10, and take less time."""

HOPPER_ROWS = 128
"""Rows of q or k in most programs, and the minimum of both."""

HOPPER_MANY = 2

HOPPER_FORWARD_SHARE = 0.75
"""Minimum tiles a multiprocessor of a 16-bit forward. With fewer the Triton kernel splits the keys."""

HOPPER_MIN_KEYS = 1024
"""Minimum keys of a 16-bit forward unless tiles are twice the multiprocessors."""

WIDE_HEAD_DIM = 96
"""The largest head dimension for which the Gluon kernels compute 64 columns and a rest, and the Triton kernels 128."""

HOPPER_FLOAT32_MIN_VISITED = 128
"""Minimum rows that a float32 program visits, whatever the number of programs."""


def hopper_forward(request: Request, q: Tensor, k: Tensor, v: Tensor) -> HopperForward | None:
    """Return choices of the 16-bit forward in Gluon, or None if a Triton kernel has to run."""
    if q.dtype == torch.float32 or not hopper_takes(request, q) or request.scale is None or request.scale <= 0:
        return None
    if q.shape[2] < HOPPER_ROWS or k.shape[2] < HOPPER_ROWS or not all(map(suits_tma, (q, k, v))):
        return None
    d = padded_head_dim(q)
    many = HOPPER_FORWARD_MANY.get(d)
    if many and num_tiles(q, many.rows) >= HOPPER_MANY * multiprocessors(q.device):
        return many
    choice = HOPPER_FORWARD[d]
    enough = HOPPER_FORWARD_SHARE if k.shape[2] >= HOPPER_MIN_KEYS else 2
    return choice if num_tiles(q, choice.rows) >= enough * _nearly_all(q.device) else None


def hopper_backward(request: Request, q: Tensor, k: Tensor, v: Tensor) -> HopperBackward | None:
    """Return choices of the 16-bit backward in Gluon, which sums dq in any order, or None."""
    if q.dtype == torch.float32 or not hopper_takes(request, q) or request.deterministic:
        return None
    if q.shape[2] < HOPPER_ROWS or k.shape[2] < HOPPER_ROWS or not all(map(suits_tma, (q, k, v))):
        return None
    d = q.shape[-1]
    multiplies_less = 64 < d <= WIDE_HEAD_DIM and num_tiles(k, HOPPER_ROWS) >= _nearly_all(q.device) // 2
    return HOPPER_BACKWARD[padded_head_dim(q)] if multiplies_less or not tiles_at_once(q, k) else None


def hopper_float32_forward(request: Request, q: Tensor, k: Tensor) -> HopperFloat32 | None:
    """Return choices of the float32 forward in Gluon, or None."""
    return None if has_few_rows(q) else hopper_float32(request, q, k)


def hopper_float32(request: Request, rows: Tensor, visited: Tensor) -> HopperFloat32 | None:
    """Return choices of a float32 kernel in Gluon, or None.

    A program holds some of the `rows`, q forward and k backward, and loops over the `visited`, k and q. The backward
    sums dq in any order. Pieces of all inputs are allocated until the kernels end.
    """
    if rows.dtype != torch.float32 or not hopper_takes(request, rows) or rows.shape[2] < HOPPER_ROWS:
        return None
    is_worth_it = visited.shape[2] >= HOPPER_FLOAT32_MIN_VISITED
    return HOPPER_FLOAT32[padded_head_dim(rows), PIECES[request.products]] if is_worth_it else None


def hopper_takes(request: Request, q: Tensor) -> bool:
    """Whether a Gluon kernel may take such a q at all: the part of the choice that is known while a graph is traced."""
    return padded_head_dim(q) in HOPPER_BACKWARD and not request.dropout and runs_gluon(q.device)


def suits_tma(x: Tensor) -> bool:
    """Whether the copy engine (TMA) can address x: strides in units of 16 bytes, no expanded dimension."""
    units = 16 // x.element_size()
    strides = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return (
        x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(stride > 0 and stride % units == 0 for stride in strides)
    )


def _nearly_all(device: torch.device) -> int:
    """Return a number of programs that keeps a GPU busy: 128 of an H200's 132 multiprocessors."""
    return multiprocessors(device) - multiprocessors(device) // 32


@constant_to_compiler
def runs_gluon(device: torch.device) -> bool:
    """Whether this is a GPU of compute capability 9.0 and triton has Gluon for it; never under the interpreter."""
    return device.type == "cuda" and _gpu_runs_gluon(device)


@functools.cache
def _gpu_runs_gluon(device: torch.device) -> bool:
    if triton.knobs.runtime.interpret or torch.version.hip or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    try:
        importlib.import_module("cs336_systems.attention.gluon_kernels")
    except Exception as reason:
        warn_once(f"Gluon ({reason})", "attention takes the plain Triton kernels, at some 1.3 to 3 times the time")
        return False
    return True
