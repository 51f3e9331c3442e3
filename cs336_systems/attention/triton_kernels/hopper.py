"""What the kernels in Gluon share: layouts of wgmma, tiles without their outer dimensions, and addition by TMA.

Gluon is Triton with the hand on what Triton decides by itself: shared memory, barriers, and which warps do what. These
kernels give each warp group (4 warps) a part of the algorithm; tiles pass between groups through shared memory, behind
mbarriers. They are for compute capability 9.0, bfloat16 and float16; `plans` imports what launches them where they run.
Tiles are 1 x 1 x rows x d of (batch, heads, seq_len, d), copied by TMA: rows beyond the end come as zeros, and are not
written.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from cs336_systems.private.kernels import gluon_async_add, gluon_reinterpret

async_add = gluon_async_add()
reinterpret = gluon_reinterpret()
# Triton 3.9 renames these two.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.constexpr_function
def mma(columns):
    """Where the wgmma of a warp group leaves 64 x columns."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def operand(columns):
    """Where a wgmma with that many columns takes its left operand, in registers."""
    return gl.DotOperandLayout(operand_index=0, parent=mma(columns), k_width=2)


@gluon.jit
def at_head(ptr, batch, head, stride_b, stride_h):
    """Where a head begins: beyond 2^31 elements too."""
    return ptr + (batch.to(gl.int64) * stride_b + head.to(gl.int64) * stride_h)


@gluon.jit
def store_rows(ptr, x, stride, row, N_ROWS, D: gl.constexpr):
    """What a warp group's wgmma left, 64 x D, to rows of a head from `row` on, as far as there are N_ROWS."""
    rows = row + gl.arange(0, 64, layout=gl.SliceLayout(1, mma(D)))
    columns = gl.arange(0, D, layout=gl.SliceLayout(0, mma(D)))
    exist = (rows < N_ROWS)[:, None] & (columns >= 0)[None, :]
    gl.store(ptr + (rows.to(gl.int64)[:, None] * stride + columns[None, :]), x, mask=exist)


@gluon.jit
def matrix(tiles, index, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """One of `tiles` without the dimensions of batch and head."""
    return tiles.index(index).reshape((ROWS, COLUMNS))
