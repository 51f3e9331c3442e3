"""The backward for float32, in three warp groups over pieces (`pieces.py`).

A program has 64 keys. One warp group loads, one computes p and dv, one ds and dk; the last two compute half of the
columns of dq each. p passes from one to the other through shared memory, and ds, in pieces, to both through the same
place.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)

from cs336_systems.attention.gluon_kernels.backward import (
    KEYS,
    LOG2_E,
    Config,
    load_vectors,
    masked,
    share_of_program,
    visited,
)
from cs336_systems.attention.gluon_kernels.pieces import (
    columns_of,
    load_pieces,
    matrices,
    operands,
    pieces_of,
    product,
    scores_of,
    transposed,
)
from cs336_systems.attention.gluon_kernels.scaffold import (
    ROWS,
    Filled,
    Ring,
    Rows,
    Sizes,
    at_head,
    barrier,
    mma,
    reinterpret,
    store_rows,
    tiles_like,
    two_rings,
)

QUERIES = ROWS  # of a tile


class Memory(NamedTuple):
    """Shared memory: tiles of k and v, rings of q with lse and of do with delta, and the exchange of p and ds."""

    k: Any
    v: Any
    q: Any
    lse: Any
    do: Any
    delta: Any
    p: Any
    ds: Any


class Task(NamedTuple):
    """Arguments of a warp group that computes."""

    dq: Any
    dk: Any
    dv: Any
    memory: Any
    sizes: Any
    scale: Any
    scale_log2: Any
    config: Any
    PIECES: Any


@gluon.jit
def load_tiles(q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, memory, sizes, config, PIECES: gl.constexpr):
    """Load k and v once, then q with lse (in base 2) and do with delta through rings."""
    share = share_of_program(sizes, KEYS, config)
    load_pieces(k_desc, share.batch, share.kv_head, share.k_start, memory.k.full, memory.k.tiles, 0, PIECES)
    load_pieces(v_desc, share.batch, share.kv_head, share.k_start, memory.v.full, memory.v.tiles, 0, PIECES)
    columns = gl.arange(0, QUERIES, layout=gl.BlockedLayout([1], [32], [4], [0]))
    for i in range(0, share.visits):
        slot = i % config.STAGES
        free = (i // config.STAGES) % 2 ^ 1  # a new barrier counts as passed in phase 1
        tile, head = visited(i, share, config)
        row = share.q_start + tile * QUERIES
        lse, delta = load_vectors(L_ptr, Delta_ptr, share.batch, head, row, columns, sizes, config)
        mbarrier.wait(memory.q.empty.index(slot), free)
        load_pieces(q_desc, share.batch, head, row, memory.q.full.index(slot), memory.q.tiles, slot, PIECES)
        memory.lse.index(slot).store(lse * LOG2_E)
        mbarrier.arrive(memory.q.full.index(slot), count=1)
        mbarrier.wait(memory.do.empty.index(slot), free)
        load_pieces(do_desc, share.batch, head, row, memory.do.full.index(slot), memory.do.tiles, slot, PIECES)
        memory.delta.index(slot).store(delta)
        mbarrier.arrive(memory.do.full.index(slot), count=1)


@gluon.jit
def compute_dv(task):
    """Compute dv of the program's keys, and the first half of the columns of dq."""
    memory, sizes = task.memory, task.sizes
    D: gl.constexpr = task.config.D
    STAGES: gl.constexpr = task.config.STAGES
    PIECES: gl.constexpr = task.PIECES
    s_layout: gl.constexpr = mma(QUERIES)
    column_layout: gl.constexpr = gl.SliceLayout(0, s_layout)
    share = share_of_program(sizes, KEYS, task.config)
    keys = share.k_start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, s_layout))
    full_from = gl.cdiv(share.k_start + KEYS - 1 - share.q_start, QUERIES)  # tiles of queries that see all these keys
    dv = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    k = matrices(memory.k.tiles, 0, D, PIECES)
    mbarrier.wait(memory.k.full, 0)
    for i in range(0, share.visits):
        slot = i % STAGES
        phase = (i // STAGES) % 2
        tile, head = visited(i, share, task.config)
        # p (line 11), and to the other warp group.
        mbarrier.wait(memory.q.full.index(slot), phase)
        s = scores_of(k, transposed(matrices(memory.q.tiles, slot, D, PIECES)), QUERIES)
        s = s * task.scale_log2 - memory.lse.index(slot).load(column_layout)[None, :]
        mbarrier.arrive(memory.q.empty.index(slot), count=1)
        s = masked(s, keys, tile, share, full_from, sizes, task.config, column_layout)
        p = gl.exp2(s)
        mbarrier.wait(memory.ds.empty, i % 2 ^ 1)
        memory.p.tiles.store(p)
        mbarrier.arrive(memory.p.full, count=1)
        # dv (line 12).
        pieces = operands(pieces_of(p, PIECES), D)
        mbarrier.wait(memory.do.full.index(slot), phase)
        part = product(pieces, matrices(memory.do.tiles, slot, D, PIECES), D)
        dv += warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(memory.do.empty.index(slot), count=1)
        add_dq(task, at_head(task.dq, share.batch, head), i % 2, share.q_start + tile * QUERIES, k, 0, D // 2)
    store_grad(task, task.dv, dv, share)


@gluon.jit
def compute_dk(task):
    """Compute dk of the program's keys, and the second half of the columns of dq."""
    memory, sizes = task.memory, task.sizes
    D: gl.constexpr = task.config.D
    STAGES: gl.constexpr = task.config.STAGES
    PIECES: gl.constexpr = task.PIECES
    s_layout: gl.constexpr = mma(QUERIES)
    share = share_of_program(sizes, KEYS, task.config)
    dk = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    k = matrices(memory.k.tiles, 0, D, PIECES)
    v = matrices(memory.v.tiles, 0, D, PIECES)
    mbarrier.wait(memory.k.full, 0)
    mbarrier.wait(memory.v.full, 0)
    for i in range(0, share.visits):
        slot = i % STAGES
        phase = (i // STAGES) % 2
        tile, head = visited(i, share, task.config)
        # ds (lines 13 and 14), in place of p, and to the other warp group.
        mbarrier.wait(memory.do.full.index(slot), phase)
        dp = product(v, transposed(matrices(memory.do.tiles, slot, D, PIECES)), QUERIES)
        dp = warpgroup_mma_wait(0, deps=(dp,))
        dp -= memory.delta.index(slot).load(gl.SliceLayout(0, s_layout))[None, :]
        mbarrier.arrive(memory.do.empty.index(slot), count=1)
        mbarrier.wait(memory.p.full, i % 2)
        ds = pieces_of(memory.p.tiles.load(s_layout) * dp, PIECES)
        for piece in gl.static_range(PIECES):
            memory.ds.tiles.index(piece).store(ds[piece])
        fence_async_shared()
        mbarrier.arrive(memory.ds.full, count=1)
        # dk (line 16).
        mbarrier.wait(memory.q.full.index(slot), phase)
        part = product(operands(ds, D), matrices(memory.q.tiles, slot, D, PIECES), D)
        dk += warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(memory.q.empty.index(slot), count=1)
        add_dq(task, at_head(task.dq, share.batch, head), i % 2, share.q_start + tile * QUERIES, k, D // 2, D // 2)
    store_grad(task, task.dk, dk * task.scale, share)


@gluon.jit
def add_dq(task, ptr, phase, row, k, FIRST_COLUMN: gl.constexpr, COLUMNS: gl.constexpr):
    """Compute dq += ds k (line 15), some of its columns, added in memory."""
    layout: gl.constexpr = mma(COLUMNS)
    mbarrier.wait(task.memory.ds.full, phase)
    dq = product(
        transposed(matrices(task.memory.ds.tiles, 0, QUERIES, len(k))), columns_of(k, FIRST_COLUMN, COLUMNS), COLUMNS
    )
    dq = warpgroup_mma_wait(0, deps=(dq,))
    mbarrier.arrive(task.memory.ds.empty, count=1)
    rows = row + gl.arange(0, QUERIES, layout=gl.SliceLayout(1, layout))
    columns = FIRST_COLUMN + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    offsets = rows.to(gl.int64)[:, None] * task.dq.stride + columns[None, :]
    exist = (rows < task.sizes.queries)[:, None] & (columns < task.config.HEAD_DIM)[None, :]
    gl.atomic_add(ptr + offsets, dq * task.scale, mask=exist, sem="relaxed")


@gluon.jit
def store_grad(task, rows, x, share):
    """Store dk or dv; where programs share their keys, add it."""
    D: gl.constexpr = task.config.D
    HEAD_DIM: gl.constexpr = task.config.HEAD_DIM
    ADDS: gl.constexpr = task.config.SPLITS > 1
    ptr = at_head(rows, share.batch, share.kv_head)
    store_rows(ptr, x, rows.stride, share.k_start, task.sizes.keys, HEAD_DIM, D, ADDS)


@gluon.jit(do_not_specialize=["NUM_GROUPS", "ALL_HEADS", "HEADS_AT_ONCE"])
def flash_bwd_hopper_float32_kernel(
    q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, dQ_ptr, dK_ptr, dV_ptr,
    stride_dqb, stride_dqh, stride_dqq, stride_dkb, stride_dkh, stride_dkk, stride_dvb, stride_dvh, stride_dvk,
    N_QUERIES, N_KEYS, NUM_GROUPS, ALL_HEADS, HEADS_AT_ONCE, scale, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, SPLITS: gl.constexpr, HEAD_DIM: gl.constexpr, D: gl.constexpr,
    STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, PIECES: gl.constexpr, EVEN_QUERIES: gl.constexpr,
    EVEN_KEYS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of 64 keys of one head of one batch element, and add their part of dq.

    Descriptors are of pieces, in tiles of 64 x D. STAGES tiles of q and of do are in flight; EVEN_QUERIES and
    EVEN_KEYS: 64 divides the lengths. REGISTERS are those of a thread that computes.
    """
    memory = allocate(q_desc, k_desc, v_desc, do_desc, STAGES, PIECES)
    specialize(
        (
            q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, memory,
            Sizes(N_QUERIES, N_KEYS, NUM_GROUPS, ALL_HEADS, HEADS_AT_ONCE),
            Config(HEAD_DIM, D, QUERIES, STAGES, 1, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS,
                HEADS_PER_KV_HEAD, SPLITS), PIECES,
        ),
        Task(
            Rows(dQ_ptr, stride_dqb, stride_dqh, stride_dqq), Rows(dK_ptr, stride_dkb, stride_dkh, stride_dkk),
            Rows(dV_ptr, stride_dvb, stride_dvh, stride_dvk), memory,
            Sizes(N_QUERIES, N_KEYS, NUM_GROUPS, ALL_HEADS, HEADS_AT_ONCE),
            scale, scale_log2,
            Config(HEAD_DIM, D, QUERIES, STAGES, 1, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS,
                HEADS_PER_KV_HEAD, SPLITS), PIECES,
        ),
        REGISTERS,
    )  # fmt: skip


@gluon.jit
def specialize(load, task, REGISTERS: gl.constexpr):
    """Run `load_tiles(*load)`, `compute_dv(task)` and `compute_dk(task)` in a warp group each."""
    gl.warp_specialize(
        [(load_tiles, load), (compute_dv, (task,)), (compute_dk, (task,))], [4, 4], [REGISTERS, REGISTERS]
    )


@gluon.jit
def allocate(q_desc, k_desc, v_desc, do_desc, STAGES: gl.constexpr, PIECES: gl.constexpr):
    """Allocate the shared memory of the float32 backward and initialize its barriers."""
    dtype: gl.constexpr = q_desc.dtype
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, QUERIES], dtype)
    p_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, QUERIES], gl.float32)
    q_tiles = tiles_like(q_desc, STAGES * PIECES)
    do_tiles = tiles_like(do_desc, STAGES * PIECES)
    k_tiles = tiles_like(k_desc, PIECES)
    v_tiles = tiles_like(v_desc, PIECES)
    # p takes the place of the first two pieces of ds. Three pieces get four tiles: triton 3.8 wants sizes that match.
    ds_pairs: gl.constexpr = (PIECES + 1) // 2
    ds_tiles = gl.allocate_shared_memory(dtype, [2 * ds_pairs, KEYS, QUERIES], ds_layout)
    p_tile = reinterpret(ds_tiles, gl.float32, [ds_pairs, KEYS, QUERIES], p_layout).index(0)
    lse_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, QUERIES], vector)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, QUERIES], vector)
    k_full, v_full, p_full, ds_full, ds_empty = barrier(), barrier(), barrier(), barrier(), barrier()
    mbarrier.init(k_full, count=1)
    mbarrier.init(v_full, count=1)
    mbarrier.init(p_full, count=1)
    mbarrier.init(ds_full, count=1)
    mbarrier.init(ds_empty, count=2)
    # A slot is full after the copies, and after the loading warps have stored lse or delta.
    q_ring, do_ring = two_rings(q_tiles, do_tiles, STAGES, 2, 2)
    fence_async_shared()
    return Memory(
        Filled(k_tiles, k_full), Filled(v_tiles, v_full), q_ring, lse_tiles, do_ring, delta_tiles,
        Filled(p_tile, p_full), Ring(ds_tiles, ds_full, ds_empty),
    )  # fmt: skip
