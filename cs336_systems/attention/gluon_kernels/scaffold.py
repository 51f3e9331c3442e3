"""Scaffold of the Gluon kernels: wgmma layouts, rings of tiles behind barriers, warp specialization.

Gluon exposes what Triton automates: shared memory, barriers, warp roles. In each kernel one warp group (4 warps) loads
tiles into shared memory and the others, the consumers, compute; tiles pass between them behind mbarriers.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from cs336_systems.attention.constants import WGMMA_ROWS
from cs336_systems.attention.private import gluon_async_add, gluon_reinterpret

ROWS = gl.constexpr(WGMMA_ROWS)

async_add = gluon_async_add()
reinterpret = gluon_reinterpret()
# Triton 3.9 renames these two.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


class Ring(NamedTuple):
    """Slots of shared memory, each with a barrier for "filled" and one for "free again"."""

    tiles: Any
    full: Any
    empty: Any


class Filled(NamedTuple):
    """Shared memory with a barrier for "filled" alone. (Triton 3.6 returns no None, so this is no Ring.)"""

    tiles: Any
    full: Any


class Sizes(NamedTuple):
    """Sequence lengths, and heads: of q in a forward, of k and v in a backward."""

    queries: Any
    keys: Any
    heads: Any
    """Heads of one batch element."""

    all_heads: Any
    heads_at_once: Any
    """Heads whose tiles are visited together, as many as the L2 cache holds."""


class Rows(NamedTuple):
    """Output in global memory: (batch, heads, rows, D) with contiguous head vectors."""

    ptr: Any
    batch_stride: Any
    head_stride: Any
    stride: Any


@gluon.constexpr_function
def mma(columns):
    """Return the register layout of a wgmma result of 64 x columns in one warp group."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def operand(columns):
    """Return the register layout of the left operand of a wgmma with that many columns."""
    return gl.DotOperandLayout(operand_index=0, parent=mma(columns), k_width=2)


@gluon.jit
def barriers(COUNT: gl.constexpr):
    """Allocate mbarriers, which the caller initializes."""
    return gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())


@gluon.jit
def barrier():
    """Allocate one mbarrier, which the caller initializes."""
    return gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())


@gluon.jit
def tiles_like(desc, COUNT: gl.constexpr):
    """Allocate tiles of a descriptor."""
    shape: gl.constexpr = desc.block_type.shape
    return gl.allocate_shared_memory(desc.dtype, [COUNT, 1, 1, shape[2], shape[3]], desc.layout)


@gluon.jit
def ring_barriers(STAGES: gl.constexpr, FILLS: gl.constexpr, READERS: gl.constexpr):
    """Allocate and initialize the barriers of a ring: a slot is full after FILLS arrivals, free after READERS."""
    full = barriers(STAGES)
    empty = barriers(STAGES)
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=FILLS)
        mbarrier.init(empty.index(s), count=READERS)
    return full, empty


@gluon.jit
def two_rings(a_tiles, b_tiles, STAGES: gl.constexpr, FILLS: gl.constexpr, READERS: gl.constexpr):
    """Make rings of two sets of tiles that are filled and freed alike."""
    a_full = barriers(STAGES)
    a_empty = barriers(STAGES)
    b_full = barriers(STAGES)
    b_empty = barriers(STAGES)
    for s in gl.static_range(STAGES):
        mbarrier.init(a_full.index(s), count=FILLS)
        mbarrier.init(b_full.index(s), count=FILLS)
        mbarrier.init(a_empty.index(s), count=READERS)
        mbarrier.init(b_empty.index(s), count=READERS)
    return Ring(a_tiles, a_full, a_empty), Ring(b_tiles, b_full, b_empty)


@gluon.jit
def rows_in(ptr, batch_stride, head_stride, stride, STRIDE_UNIT: gl.constexpr):
    """Return Rows whose strides are multiples of STRIDE_UNIT, which Triton sees for itself where that is 16 or 1."""
    if STRIDE_UNIT > 1:
        batch_stride = batch_stride // STRIDE_UNIT * STRIDE_UNIT
        head_stride = head_stride // STRIDE_UNIT * STRIDE_UNIT
        stride = stride // STRIDE_UNIT * STRIDE_UNIT
    return Rows(ptr, batch_stride, head_stride, stride)


@gluon.jit
def at_head(x, batch, head):
    """Return a pointer to the first row of a head; offsets beyond 2^31 elements are in range."""
    return x.ptr + (batch.to(gl.int64) * x.batch_stride + head.to(gl.int64) * x.head_stride)


@gluon.jit
def store_rows(ptr, x, stride, row, N_ROWS, HEAD_DIM: gl.constexpr, D: gl.constexpr, ADDS: gl.constexpr = False):
    """Store the first HEAD_DIM columns of a wgmma result of 64 x D to a head's rows from `row` on, up to N_ROWS.

    If ADDS, add them to what is there, which other programs add to as well.
    """
    rows = row + gl.arange(0, 64, layout=gl.SliceLayout(1, mma(D)))
    columns = gl.arange(0, D, layout=gl.SliceLayout(0, mma(D)))
    exist = (rows < N_ROWS)[:, None] & (columns < HEAD_DIM)[None, :]
    ptrs = ptr + (rows.to(gl.int64)[:, None] * stride + columns[None, :])
    if ADDS:
        gl.atomic_add(ptrs, x, mask=exist, sem="relaxed")
    else:
        gl.store(ptrs, x, mask=exist)


@gluon.jit
def matrix(tiles, index, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Return one of `tiles` without the dimensions of batch and head."""
    return tiles.index(index).reshape((ROWS, COLUMNS))
