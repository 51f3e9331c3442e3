"""Which kernels and which tiles FlashAttention takes, by head dimension, dtype, lengths and GPU."""

import functools
import importlib
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from cs336_systems.attention.launch import cdiv
from cs336_systems.private import warn_once
from cs336_systems.private.kernels import constant_to_compiler


class Tiles(NamedTuple):
    """Rows of q and of k in a tile, and how the kernel is compiled for them."""

    q: int
    k: int
    num_warps: int
    num_stages: int


# By padded head dimension: (bfloat16 and float16, float32). The fastest of those measured on an H200 at one head and at
# many, 1024 to 65536 keys (NOTES.md); of float32 at 64 and 128, where bf16x6 and tf32 agree, and below not measured.
# `python -m perf study tiles` finds them again, here or on another GPU.
FORWARD_TILES = {
    16: (Tiles(64, 128, 4, 3), Tiles(64, 64, 4, 3)),
    32: (Tiles(64, 128, 4, 3), Tiles(64, 64, 4, 3)),
    64: (Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 2)),
    128: (Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 2)),
}
DKDV_TILES = {
    16: (Tiles(64, 128, 4, 3), Tiles(32, 64, 4, 2)),
    32: (Tiles(128, 64, 4, 3), Tiles(32, 64, 4, 2)),
    64: (Tiles(64, 64, 4, 3), Tiles(32, 128, 8, 1)),
    128: (Tiles(32, 64, 4, 3), Tiles(32, 128, 8, 1)),
}
DQ_TILES = {
    16: (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2)),
    32: (Tiles(64, 128, 4, 3), Tiles(64, 64, 4, 2)),
    64: (Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 1)),
    128: (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 1)),
}
SHORT_GRID_TILES = {Tiles(128, 64, 8, 3): Tiles(64, 64, 4, 3)}
"""What takes their place where programs are fewer than 2 a multiprocessor: dq of 8192 queries in 0.64 of the time."""
# What takes their place where a block has less than 200 KiB of shared memory (163 in 8.0), and less than 160 (99 in
# 8.6, 8.9 and 12.0). Not tuned.
MEDIUM_TILES = {
    Tiles(128, 64, 8, 2): Tiles(128, 32, 8, 2),
    Tiles(128, 32, 8, 1): Tiles(64, 32, 8, 2),
    Tiles(32, 128, 8, 1): Tiles(32, 32, 8, 2),
}
SMALLER_TILES = {
    Tiles(64, 64, 4, 3): Tiles(64, 64, 4, 2),
    Tiles(128, 64, 8, 3): Tiles(128, 64, 8, 2),
    Tiles(128, 64, 8, 2): Tiles(64, 32, 8, 2),
    Tiles(128, 64, 8, 1): Tiles(64, 32, 8, 2),
    Tiles(128, 32, 8, 1): Tiles(32, 32, 8, 2),
    Tiles(32, 128, 8, 1): Tiles(32, 32, 8, 2),
}
MOST_SHARED_BYTES = 200 * 2**10
MUCH_SHARED_BYTES = 160 * 2**10


def tiles_for(q: Tensor, table: dict[int, tuple[Tiles, Tiles]]) -> Tiles:
    """A table's choice for q's head dimension, dtype, rows and device."""
    half, single = table[padded_head_dim(q)]
    tiles = single if q.dtype == torch.float32 else half
    if tiles in SHORT_GRID_TILES and q.numel() // q.shape[-1] < 2 * multiprocessors(q.device) * tiles.q:
        tiles = SHORT_GRID_TILES[tiles]
    return fitting(tiles, shared_bytes(q.device))


def fitting(tiles: Tiles, shared_bytes: int) -> Tiles:
    """These or smaller ones, for blocks with so much shared memory."""
    if shared_bytes >= MOST_SHARED_BYTES:
        return tiles
    return (MEDIUM_TILES if shared_bytes >= MUCH_SHARED_BYTES else SMALLER_TILES).get(tiles, tiles)


@constant_to_compiler
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; Triton's interpreter runs one program after another."""
    return _multiprocessors_of_gpu(device) if device.type == "cuda" else 0


@functools.cache
def _multiprocessors_of_gpu(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@constant_to_compiler
def shared_bytes(device: torch.device) -> int:
    """Of a block at most; Triton's interpreter knows no limit."""
    return _shared_bytes_of_gpu(device) if device.type == "cuda" else MOST_SHARED_BYTES


@functools.cache
def _shared_bytes_of_gpu(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", MUCH_SHARED_BYTES))


def padded_head_dim(q: Tensor) -> int:
    """Tiles are powers of two, from 16."""
    padded = 16
    while padded < q.shape[-1]:
        padded *= 2
    return padded


def in_one_loop(q: Tensor) -> bool:
    """Of the backward: whether full tiles share a loop with those that need a mask, which compiles in half the time."""
    return q.dtype == torch.float32 and padded_head_dim(q) == 128


AT_ONCE_TILES = Tiles(64, 64, 4, 3)
AT_ONCE_LEAST_SHARED_BYTES = 160 * 2**10


def tiles_at_once(q: Tensor, k: Tensor) -> Tiles | None:
    """For both passes of the backward in one launch, by (batch, heads, seq_len, d), or None.

    Taken where all programs of both run at once: beyond that two passes with tiles of their own are faster.
    """
    tiles = AT_ONCE_TILES
    programs = sum(x.shape[0] * x.shape[1] * cdiv(x.shape[2], tiles.q) for x in (q, k))
    most = multiprocessors(q.device) * (1 if q.shape[-1] <= 64 else 2)
    fits = shared_bytes(q.device) >= AT_ONCE_LEAST_SHARED_BYTES  # its loop over queries holds tiles of out as well
    has_queries = q.shape[2] > 1  # for one, ptxas of triton 3.6 dies
    return tiles if q.dtype != torch.float32 and programs <= most and fits and has_queries else None


SPLIT_TILES = Tiles(64, 64, 4, 3)
LEAST_CHUNK = 256
LEAST_SPLIT_KEYS = 2048
"""At 1024 the second launch takes longer than what is saved."""


def split_keys(q: Tensor, k: Tensor, dropout: bool) -> int | None:
    """How many keys a program of the forward attends to where tiles of queries leave most of the GPU idle, or None.

    By (batch, heads, seq_len, d). Measured at one head of 1024 to 8192: the best of 256, 512, 1024 and 2048 or within
    10 % of it, and 0.55 to 0.9 of the time without.
    """
    if dropout or q.dtype == torch.float32:
        return None
    tiles = q.shape[0] * q.shape[1] * cdiv(q.shape[2], SPLIT_TILES.q)
    seq_len_k = k.shape[2]
    if tiles > multiprocessors(q.device) or seq_len_k < LEAST_SPLIT_KEYS:
        return None
    chunk = LEAST_CHUNK
    while chunk < seq_len_k // (4 if q.shape[-1] >= 64 else 8):
        chunk *= 2
    return chunk


class HopperForward(NamedTuple):
    """How `forward_hopper` is compiled: `registers` are those of a thread that computes."""

    k_tile: int
    stages: int
    consumers: int
    registers: int
    least_keys: int
    """From how many keys on it is taken."""

    @property
    def rows(self) -> int:
        """Of q in a program."""
        return 64 * self.consumers


class HopperBackward(NamedTuple):
    """How `backward_hopper` is compiled: `dq_registers` are those of its warp group of dq, if it has one."""

    q_tile: int
    stages: int
    ds_stages: int
    registers: int
    dq_registers: int | None


class HopperFloat32(NamedTuple):
    """How the kernels over bfloat16 pieces of float32 are compiled, forward and backward."""

    pieces: int
    stages: int
    registers: int


# By head dimension, the fastest of those measured on an H200 (NOTES.md); in triton 3.6 and 3.7 nothing spills but some
# 30 registers in the causal backward of 128, before its loop. At d = 64 the plain forward takes 0.78 of the time of the
# one in Gluon at 1024 keys, and 1.09 at 4096.
HOPPER_FORWARD = {64: HopperForward(128, 2, 3, 160, 4096), 128: HopperForward(128, 2, 2, 240, 1024)}
HOPPER_BACKWARD = {64: HopperBackward(64, 3, 2, 200, 88), 128: HopperBackward(64, 2, 2, 240, None)}
HOPPER_FLOAT32 = {
    (64, 2): HopperFloat32(2, 2, 216),
    (64, 3): HopperFloat32(3, 2, 216),
    (128, 2): HopperFloat32(2, 2, 232),
    (128, 3): HopperFloat32(3, 1, 232),
}
"""By head dimension and pieces; of three the fastest of those measured on an H200 (NOTES.md)."""
PIECES = {"bf16x6": 3, "bf16x3": 2, "tf32": 2}
"""By what tl.dot would do instead. Two hold more bits than TF32, 16 for 10, and take less time."""

HOPPER_LEAST_ROWS = 128
HOPPER_LEAST_TILES = 264
"""So many rows of q and of k, and tiles of 64 of them, are the least: 2 tiles for each of 132 multiprocessors."""
HOPPER_LONG = 4096
HOPPER_LONG_LEAST_PROGRAMS = 128
"""Where each visits so many rows, a program for nearly each multiprocessor is enough: 4 heads of 4096 take 0.78 of the
plain kernels' time forward (d = 128; at 64, whose programs have 192 rows, they are 88 and take 1.09), 0.77 and 0.80
backward."""
HOPPER_FLOAT32_LONG = 2048
"""Float32 needs no such number of tiles where each visits so many rows: one head of 8192 takes 0.30 (d = 128) and 0.40
(64) of the plain kernels' time, of 2048 0.51 and 1.00; 16 heads of 512 take 1.41 and 2.03."""


def hopper_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: bool) -> HopperForward | None:
    """How the forward in Gluon takes these (batch, heads, seq_len, d), or None if the plain kernels have to."""
    if q.dtype == torch.float32 or not hopper_takes(q, dropout) or scale <= 0:
        return None
    choice = HOPPER_FORWARD[q.shape[-1]]
    is_large = k.shape[2] >= choice.least_keys and _fills_a_gpu(q, k, choice.rows)
    return choice if is_large and all(map(suits_tma, (q, k, v))) else None


def hopper_backward(q: Tensor, k: Tensor, v: Tensor, dropout: bool, deterministic: bool) -> HopperBackward | None:
    """As `hopper_forward`. Its sums of dq come in any order: `deterministic` are the plain kernels' two passes."""
    if q.dtype == torch.float32 or not hopper_takes(q, dropout) or deterministic:
        return None
    is_large = _fills_a_gpu(q, k) and _fills_a_gpu(k, q)
    return HOPPER_BACKWARD[q.shape[-1]] if is_large and all(map(suits_tma, (q, k, v))) else None


def hopper_float32(rows: Tensor, visited: Tensor, products: str, dropout: bool) -> HopperFloat32 | None:
    """How a kernel in Gluon takes float32, or None; products of `PIECES`.

    A program has some of the `rows`, q forward and k backward, and loops over the `visited`, k and q. The backward's
    sums of dq come in any order. Both hold the pieces of what they read until they end.
    """
    takes = rows.dtype == torch.float32 and hopper_takes(rows, dropout) and rows.shape[2] >= HOPPER_LEAST_ROWS
    is_large = visited.shape[2] >= HOPPER_FLOAT32_LONG or _fills_a_gpu(rows, visited)
    return HOPPER_FLOAT32[rows.shape[-1], PIECES[products]] if takes and is_large else None


def hopper_takes(q: Tensor, dropout: bool) -> bool:
    """Whether a kernel in Gluon may take such a q at all: what is known of it while a graph is traced."""
    return q.shape[-1] in HOPPER_BACKWARD and not dropout and runs_gluon(q.device)


def suits_tma(x: Tensor) -> bool:
    """Whether the copy engine can address x, (batch, heads, seq_len, d): all in units of 16 bytes, nothing expanded."""
    units = 16 // x.element_size()
    strides = (stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1)
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(one > 0 and one % units == 0 for one in strides)


def _fills_a_gpu(x: Tensor, visited: Tensor, rows: int = 128) -> bool:
    """Whether programs of so many `rows` of x do, of which each loops over the `visited`."""
    batch, num_heads, seq_len, _ = x.shape
    if seq_len < HOPPER_LEAST_ROWS:
        return False
    tiles, programs = (batch * num_heads * cdiv(seq_len, one) for one in (64, rows))
    is_long = visited.shape[2] >= HOPPER_LONG and programs >= HOPPER_LONG_LEAST_PROGRAMS
    return is_long or tiles >= HOPPER_LEAST_TILES


@constant_to_compiler
def runs_gluon(device: torch.device) -> bool:
    """Whether it is a GPU of compute capability 9.0 and this triton has Gluon for it. Under the interpreter: not."""
    return device.type == "cuda" and _gpu_runs_gluon(device)


@functools.cache
def _gpu_runs_gluon(device: torch.device) -> bool:
    if triton.knobs.runtime.interpret or torch.version.hip or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    try:
        importlib.import_module("cs336_systems.attention.flash_hopper")
        importlib.import_module("cs336_systems.attention.flash_float32")
    except Exception as reason:
        warn_once(f"Gluon ({reason})", "attention takes the plain Triton kernels, at some 1.3 to 3 times the time")
        return False
    return True
