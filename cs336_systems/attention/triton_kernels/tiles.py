"""What the forward and the backward share: which tile a program has, and how it loads one."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_of_program(num_tiles, LAST_FIRST: tl.constexpr):
    """The tile and, as int64, the head (over the batch) of this program, in a grid of num_tiles * heads.

    Programs start in order. LAST_FIRST gives a head's last tile, the heaviest if causal, to its first program,
    so that what runs at the very end is short. One dimension, since a grid's second ends at 65535 heads; int64,
    since 2^31 elements are 256 heads of 65536 x 128.
    """
    program = tl.program_id(0)
    tile = program % num_tiles
    if LAST_FIRST:
        tile = num_tiles - 1 - tile
    return tile, (program // num_tiles).to(tl.int64)


@triton.jit
def load_rows(ptrs, in_range, dims, D: tl.constexpr, MASK_ROWS: tl.constexpr):
    """Rows of head vectors, zeros where a row is not `in_range` (if MASK_ROWS) and beyond the head dimension D."""
    if MASK_ROWS:
        rows = tl.load(ptrs, mask=in_range[:, None] & (dims < D)[None, :], other=0.0)
    elif dims.shape[0] != D:
        rows = tl.load(ptrs, mask=(dims < D)[None, :], other=0.0)
    else:
        rows = tl.load(ptrs)
    return rows


@triton.jit
def delta_of_rows(out, do):
    """delta = rowsum(out * do), which is rowsum(p * dp) without the n x n matrices, in float32."""
    return tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
