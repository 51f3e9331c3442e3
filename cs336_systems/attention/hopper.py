"""Choice of the kernels in Gluon by head dimension, dtype, lengths and GPU; the Triton kernels take all other calls."""

from typing import NamedTuple

import torch
from torch import Tensor

from cs336_systems.attention import gpu
from cs336_systems.attention.constants import WGMMA_ROWS
from cs336_systems.attention.launch import num_tiles
from cs336_systems.attention.request import Request
from cs336_systems.attention.tiles import has_few_rows, padded_head_dim, tiles_at_once


class HopperForward(NamedTuple):
    """Compile-time choices of the 16-bit forward in Gluon; `registers` are those of a consumer's thread."""

    k_tile: int
    stages: int
    q_stages: int
    consumers: int
    registers: int

    halves: bool = False
    """Whether a causal kernel leaves out half of its first tile of keys, of 128, where that half is masked."""

    one_tile: bool = False
    """Whether each program takes one tile, with no loop over tiles."""

    whole_turns: bool = False
    """Whether heads are visited together in numbers whose tiles make whole turns of all programs."""

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
HOPPER_FORWARD = {
    64: HopperForward(128, 2, 2, 2, 240, halves=True, whole_turns=True),
    128: HopperForward(128, 2, 2, 2, 240, halves=True, whole_turns=True),
}
HOPPER_FORWARD_MANY = {64: HopperForward(64, 4, 2, 4, 112, whole_turns=True)}
"""Replacements where each multiprocessor gets HOPPER_MANY of their tiles, so that large ones balance."""
HOPPER_FORWARD_LONG = {64: HopperForward(128, 2, 1, 3, 160, halves=True, one_tile=True)}
"""Replacements there if a tile sees HOPPER_LONG_KEYS keys in the mean."""
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

HOPPER_LONG_KEYS = 4096

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
    if not _takes_16_bit(request, q, k, v) or request.scale is None or request.scale <= 0:
        return None
    d = padded_head_dim(q)
    is_long = k.shape[2] >= HOPPER_LONG_KEYS * (2 if request.is_causal else 1)
    for table in (HOPPER_FORWARD_LONG, HOPPER_FORWARD_MANY) if is_long else (HOPPER_FORWARD_MANY,):
        choice = table.get(d)
        if choice and num_tiles(q, choice.rows) >= HOPPER_MANY * gpu.multiprocessors(q.device):
            return choice
    choice = HOPPER_FORWARD[d]
    enough = HOPPER_FORWARD_SHARE if k.shape[2] >= HOPPER_MIN_KEYS else 2
    return choice if num_tiles(q, choice.rows) >= enough * _nearly_all(q.device) else None


def hopper_backward(request: Request, q: Tensor, k: Tensor, v: Tensor) -> HopperBackward | None:
    """Return choices of the 16-bit backward in Gluon, which sums dq in any order, or None."""
    if not _takes_16_bit(request, q, k, v) or request.deterministic:
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
    """Whether a Gluon kernel may take such a q at all, however long."""
    return padded_head_dim(q) in HOPPER_BACKWARD and not request.dropout and gpu.runs_gluon(q.device)


def _takes_16_bit(request: Request, q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the 16-bit kernels in Gluon can run, however fast."""
    has_rows = min(q.shape[2], k.shape[2]) >= HOPPER_ROWS
    return q.dtype != torch.float32 and hopper_takes(request, q) and has_rows and all(map(suits_tma, (q, k, v)))


def suits_tma(x: Tensor) -> bool:
    """Whether the copy engine (TMA) can address x: strides in units of 16 bytes, no expanded dimension."""
    units = 16 // x.element_size()
    strides = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return (
        x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(stride > 0 and stride % units == 0 for stride in strides)
    )


def _nearly_all(device: torch.device) -> int:
    """Return a number of programs that keeps a GPU busy: 128 of an H200's 132 multiprocessors."""
    return gpu.multiprocessors(device) - gpu.multiprocessors(device) // 32
