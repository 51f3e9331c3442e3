"""Code that the plain kernels share: arguments in tuples, the tile of a program, loads of rows.

Parameters of a launched kernel stand one by one, because a direct launch takes no tuples.
The functions behind it get them in these tuples, which cost nothing: Triton takes them apart when it compiles.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cs336_systems.attention import constants

LOG2_E = tl.constexpr(constants.LOG2_E)
LN_2 = tl.constexpr(constants.LN_2)
MIN_FLOAT32 = tl.constexpr(constants.MIN_FLOAT32)


class Rows(NamedTuple):
    """Head vectors in memory: a pointer to the first row of a head, and strides to the next head and row."""

    ptr: Any
    head_stride: Any
    stride: Any


class Stream(NamedTuple):
    """Rows that a loop visits tile by tile: a pointer to the tile, the offsets in it, and the stride of rows."""

    ptr: Any
    offsets: Any
    stride: Any


class Place(NamedTuple):
    """Tile of scores that a program computes: its fixed index range, a range within visited tiles, and its head."""

    start: Any
    rows: Any
    visited: Any
    dims: Any
    head: Any


class Scale(NamedTuple):
    """softmax_scale, for gradients, and softmax_scale * log2(e), for scores in base 2."""

    natural: Any
    log2: Any


class Dropout(NamedTuple):
    """`attention.dropout.Dropout`'s numbers, None each without dropout."""

    seed_ptr: Any
    drop_below: Any
    keep_probability: Any


class Config(NamedTuple):
    """Compile-time choices of a backward."""

    D: Any
    D_PADDED: Any
    Q_TILE_SIZE: Any
    K_TILE_SIZE: Any
    IS_CAUSAL: Any
    EVEN_QUERIES: Any
    EVEN_KEYS: Any
    ONE_LOOP: Any
    INPUT_PRECISION: Any
    HEADS_PER_KV_HEAD: Any


@triton.jit
def tile_of_program(num_tiles, LAST_FIRST: tl.constexpr):
    """Return the tile and, as int64, the head (over the batch) of this program, in a grid of num_tiles * heads.

    Programs start in order. LAST_FIRST gives a head's last tile, the heaviest if causal, to its first program,
    so that the programs that run last are short. The grid has one dimension, since a second is limited to 65535; int64,
    since 256 heads of 65536 x 128 have 2^31 elements.
    """
    program = tl.program_id(0)
    tile = program % num_tiles
    if LAST_FIRST:
        tile = num_tiles - 1 - tile
    return tile, (program // num_tiles).to(tl.int64)


@triton.jit
def rows_at(ptr, offset, head_stride, stride, STRIDE_UNIT: tl.constexpr):
    """Return Rows at an offset, as multiples of STRIDE_UNIT if it is not 1.

    Triton knows of integer arguments only that 16 divides them. A row of 88 elements would be loaded one by one.
    """
    if STRIDE_UNIT > 1:
        offset = offset // STRIDE_UNIT * STRIDE_UNIT
        head_stride = head_stride // STRIDE_UNIT * STRIDE_UNIT
        stride = stride // STRIDE_UNIT * STRIDE_UNIT
    return Rows(ptr + offset, head_stride, stride)


@triton.jit
def head_of(rows, head):
    """Return Rows of the head that many heads further."""
    return Rows(rows.ptr + head * rows.head_stride, rows.head_stride, rows.stride)


@triton.jit
def load_rows(ptrs, in_range, dims, D: tl.constexpr, MASK_ROWS: tl.constexpr):
    """Load rows of head vectors, zeros where a row is not `in_range` (if MASK_ROWS) and beyond head dimension D."""
    if MASK_ROWS:
        rows = tl.load(ptrs, mask=in_range[:, None] & (dims < D)[None, :], other=0.0)
    elif dims.shape[0] != D:
        rows = tl.load(ptrs, mask=(dims < D)[None, :], other=0.0)
    else:
        rows = tl.load(ptrs)
    return rows


@triton.jit
def delta_of_rows(out, do):
    """Return rowsum(out * do) in float32, which equals rowsum(p * dp) without the n x n matrices."""
    return tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
