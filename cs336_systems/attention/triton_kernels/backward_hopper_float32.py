"""The backward of `backward_hopper` for float32, in three warp groups over pieces (`pieces.py`).

A program has 64 keys. One warp group loads; one computes p and dv, one ds and dk; half of the columns of dq each. p
goes from the one to the other through shared memory, and ds, in pieces, to both through the same place. dq is added in
memory, so that the last bits of two runs differ.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)

from cs336_systems.attention.triton_kernels.backward_hopper import KEYS, LOG2_E, masked, tiles_of_program, visited
from cs336_systems.attention.triton_kernels.hopper import at_head, mma, reinterpret, store_rows
from cs336_systems.attention.triton_kernels.pieces import (
    columns_of,
    load_pieces,
    matrices,
    operands,
    pieces_of,
    product,
    scores_of,
    turned,
)

QUERIES = gl.constexpr(64)  # of a tile


@gluon.jit
def load_tiles(
    q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles, delta_tiles,
    k_full, v_full, q_full, q_empty, do_full, do_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS,
    HEADS_PER_KV_HEAD: gl.constexpr, STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """The loading warp group: k and v once; then rings of q with lse (in base 2), and of do with delta."""
    k_start, batch, kv_head, q_start, num_tiles = tiles_of_program(
        N_QUERIES, N_KEYS, NUM_KV_HEADS, KEYS, QUERIES, IS_CAUSAL
    )
    load_pieces(k_desc, batch, kv_head, k_start, k_full, k_tiles, 0, PIECES)
    load_pieces(v_desc, batch, kv_head, k_start, v_full, v_tiles, 0, PIECES)
    columns = gl.arange(0, QUERIES, layout=gl.BlockedLayout([1], [32], [4], [0]))
    for i in range(0, num_tiles * HEADS_PER_KV_HEAD):
        slot = i % STAGES
        free = (i // STAGES) % 2 ^ 1  # a new barrier counts as passed in phase 1
        tile, head = visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD)
        row = q_start + tile * QUERIES
        row_ptr = (batch * (NUM_KV_HEADS * HEADS_PER_KV_HEAD) + head).to(gl.int64) * N_QUERIES
        lse = gl.load(L_ptr + row_ptr + row + columns, mask=row + columns < N_QUERIES, other=0.0)
        delta = gl.load(Delta_ptr + row_ptr + row + columns, mask=row + columns < N_QUERIES, other=0.0)
        mbarrier.wait(q_empty.index(slot), free)
        load_pieces(q_desc, batch, head, row, q_full.index(slot), q_tiles, slot, PIECES)
        lse_tiles.index(slot).store(lse * LOG2_E)
        mbarrier.arrive(q_full.index(slot), count=1)
        mbarrier.wait(do_empty.index(slot), free)
        load_pieces(do_desc, batch, head, row, do_full.index(slot), do_tiles, slot, PIECES)
        delta_tiles.index(slot).store(delta)
        mbarrier.arrive(do_full.index(slot), count=1)


@gluon.jit
def compute_dv(
    dQ_ptr, dV_ptr, q_tiles, k_tiles, do_tiles, lse_tiles, p_tile, ds_tiles,
    k_full, q_full, q_empty, do_full, do_empty, p_full, ds_full, ds_empty,
    stride_dqb, stride_dqh, stride_dqq, stride_dvb, stride_dvh, stride_dvk,
    N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr,
    PIECES: gl.constexpr, EVEN_QUERIES: gl.constexpr, EVEN_KEYS: gl.constexpr,
):  # fmt: skip
    """dv of the program's keys, and the first half of the columns of dq."""
    s_layout: gl.constexpr = mma(QUERIES)
    column_layout: gl.constexpr = gl.SliceLayout(0, s_layout)
    k_start, batch, kv_head, q_start, num_tiles = tiles_of_program(
        N_QUERIES, N_KEYS, NUM_KV_HEADS, KEYS, QUERIES, IS_CAUSAL
    )
    keys = k_start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, s_layout))
    full_from = gl.cdiv(k_start + KEYS - 1 - q_start, QUERIES)  # tiles of queries that see all these keys
    dv = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    k = matrices(k_tiles, 0, D, PIECES)
    mbarrier.wait(k_full, 0)
    for i in range(0, num_tiles * HEADS_PER_KV_HEAD):
        slot = i % STAGES
        phase = (i // STAGES) % 2
        tile, head = visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD)
        # p (line 11), and to the other warp group.
        mbarrier.wait(q_full.index(slot), phase)
        s = scores_of(k, turned(matrices(q_tiles, slot, D, PIECES)), QUERIES)
        s = s * scale_log2 - lse_tiles.index(slot).load(column_layout)[None, :]
        mbarrier.arrive(q_empty.index(slot), count=1)
        s = masked(
            s, keys, tile, q_start, full_from, num_tiles, N_QUERIES, N_KEYS,
            QUERIES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS, column_layout,
        )  # fmt: skip
        p = gl.exp2(s)
        mbarrier.wait(ds_empty, i % 2 ^ 1)
        p_tile.store(p)
        mbarrier.arrive(p_full, count=1)
        # dv (line 12).
        pieces = operands(pieces_of(p, PIECES), D)
        mbarrier.wait(do_full.index(slot), phase)
        part = product(pieces, matrices(do_tiles, slot, D, PIECES), D)
        dv += warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(do_empty.index(slot), count=1)
        add_dq(
            at_head(dQ_ptr, batch, head, stride_dqb, stride_dqh), ds_tiles, k, ds_full, ds_empty, i % 2, stride_dqq,
            q_start + tile * QUERIES, N_QUERIES, scale, 0, D // 2,
        )  # fmt: skip
    store_rows(at_head(dV_ptr, batch, kv_head, stride_dvb, stride_dvh), dv, stride_dvk, k_start, N_KEYS, D)


@gluon.jit
def compute_dk(
    dQ_ptr, dK_ptr, q_tiles, k_tiles, v_tiles, do_tiles, delta_tiles, p_tile, ds_tiles,
    k_full, v_full, q_full, q_empty, do_full, do_empty, p_full, ds_full, ds_empty,
    stride_dqb, stride_dqh, stride_dqq, stride_dkb, stride_dkh, stride_dkk,
    N_QUERIES, N_KEYS, NUM_KV_HEADS, scale,
    HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr,
    PIECES: gl.constexpr,
):  # fmt: skip
    """dk of the program's keys, and the second half of the columns of dq."""
    s_layout: gl.constexpr = mma(QUERIES)
    k_start, batch, kv_head, q_start, num_tiles = tiles_of_program(
        N_QUERIES, N_KEYS, NUM_KV_HEADS, KEYS, QUERIES, IS_CAUSAL
    )
    dk = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    k = matrices(k_tiles, 0, D, PIECES)
    v = matrices(v_tiles, 0, D, PIECES)
    mbarrier.wait(k_full, 0)
    mbarrier.wait(v_full, 0)
    for i in range(0, num_tiles * HEADS_PER_KV_HEAD):
        slot = i % STAGES
        phase = (i // STAGES) % 2
        tile, head = visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD)
        # ds (lines 13 and 14), in place of p, and to the other warp group.
        mbarrier.wait(do_full.index(slot), phase)
        dp = product(v, turned(matrices(do_tiles, slot, D, PIECES)), QUERIES)
        dp = warpgroup_mma_wait(0, deps=(dp,))
        dp -= delta_tiles.index(slot).load(gl.SliceLayout(0, s_layout))[None, :]
        mbarrier.arrive(do_empty.index(slot), count=1)
        mbarrier.wait(p_full, i % 2)
        ds = pieces_of(p_tile.load(s_layout) * dp, PIECES)
        for piece in gl.static_range(PIECES):
            ds_tiles.index(piece).store(ds[piece])
        fence_async_shared()
        mbarrier.arrive(ds_full, count=1)
        # dk (line 16).
        mbarrier.wait(q_full.index(slot), phase)
        part = product(operands(ds, D), matrices(q_tiles, slot, D, PIECES), D)
        dk += warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(q_empty.index(slot), count=1)
        add_dq(
            at_head(dQ_ptr, batch, head, stride_dqb, stride_dqh), ds_tiles, k, ds_full, ds_empty, i % 2, stride_dqq,
            q_start + tile * QUERIES, N_QUERIES, scale, D // 2, D // 2,
        )  # fmt: skip
    store_rows(at_head(dK_ptr, batch, kv_head, stride_dkb, stride_dkh), dk * scale, stride_dkk, k_start, N_KEYS, D)


@gluon.jit
def add_dq(
    dQ_ptr, ds_tiles, k, ds_full, ds_empty, phase, stride_dqq, q_start, N_QUERIES, scale,
    FIRST_COLUMN: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """dq += ds k (line 15), some of its columns, added in memory."""
    layout: gl.constexpr = mma(COLUMNS)
    mbarrier.wait(ds_full, phase)
    dq = product(turned(matrices(ds_tiles, 0, QUERIES, len(k))), columns_of(k, FIRST_COLUMN, COLUMNS), COLUMNS)
    dq = warpgroup_mma_wait(0, deps=(dq,))
    mbarrier.arrive(ds_empty, count=1)
    rows = q_start + gl.arange(0, QUERIES, layout=gl.SliceLayout(1, layout))
    columns = FIRST_COLUMN + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    offsets = rows.to(gl.int64)[:, None] * stride_dqq + columns[None, :]
    exist = (rows < N_QUERIES)[:, None] & (columns >= 0)[None, :]
    gl.atomic_add(dQ_ptr + offsets, dq * scale, mask=exist, sem="relaxed")


@gluon.jit(do_not_specialize=["NUM_KV_HEADS"])
def flash_bwd_hopper_float32_kernel(
    q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, dQ_ptr, dK_ptr, dV_ptr,
    stride_dqb, stride_dqh, stride_dqq, stride_dkb, stride_dkh, stride_dkk, stride_dvb, stride_dvh, stride_dvk,
    N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr,
    PIECES: gl.constexpr, EVEN_QUERIES: gl.constexpr, EVEN_KEYS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """One program computes dk and dv of 64 keys of one head of one batch element, and adds their part of dq.

    Descriptors are of pieces, in tiles of 64 x D. STAGES tiles of q and of do are in flight; EVEN_QUERIES and
    EVEN_KEYS: 64 divides the lengths. REGISTERS are those of a thread that computes.
    """
    dtype: gl.constexpr = q_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, QUERIES], dtype)
    p_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, QUERIES], gl.float32)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES * PIECES, 1, 1, QUERIES, D], q_desc.layout)
    do_tiles = gl.allocate_shared_memory(dtype, [STAGES * PIECES, 1, 1, QUERIES, D], do_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [PIECES, 1, 1, KEYS, D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [PIECES, 1, 1, KEYS, D], v_desc.layout)
    # p takes the place of the first two pieces of ds. Four where there are three: triton 3.8 wants sizes that match.
    ds_pairs: gl.constexpr = (PIECES + 1) // 2
    ds_tiles = gl.allocate_shared_memory(dtype, [2 * ds_pairs, KEYS, QUERIES], ds_layout)
    p_tile = reinterpret(ds_tiles, gl.float32, [ds_pairs, KEYS, QUERIES], p_layout).index(0)
    lse_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, QUERIES], vector)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, QUERIES], vector)
    k_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    p_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    ds_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    ds_empty = gl.allocate_shared_memory(gl.int64, [1], barrier)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    do_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    mbarrier.init(k_full, count=1)
    mbarrier.init(v_full, count=1)
    mbarrier.init(p_full, count=1)
    mbarrier.init(ds_full, count=1)
    mbarrier.init(ds_empty, count=2)
    for s in gl.static_range(STAGES):
        mbarrier.init(q_full.index(s), count=2)  # the copies, and the loading warps with lse
        mbarrier.init(do_full.index(s), count=2)
        mbarrier.init(q_empty.index(s), count=2)
        mbarrier.init(do_empty.index(s), count=2)
    fence_async_shared()

    gl.warp_specialize([
        (load_tiles, (
            q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles,
            delta_tiles, k_full, v_full, q_full, q_empty, do_full, do_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS,
            HEADS_PER_KV_HEAD, STAGES, IS_CAUSAL, PIECES,
        )),
        (compute_dv, (
            dQ_ptr, dV_ptr, q_tiles, k_tiles, do_tiles, lse_tiles, p_tile, ds_tiles,
            k_full, q_full, q_empty, do_full, do_empty, p_full, ds_full, ds_empty,
            stride_dqb, stride_dqh, stride_dqq, stride_dvb, stride_dvh, stride_dvk,
            N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
            HEADS_PER_KV_HEAD, D, STAGES, IS_CAUSAL, PIECES, EVEN_QUERIES, EVEN_KEYS,
        )),
        (compute_dk, (
            dQ_ptr, dK_ptr, q_tiles, k_tiles, v_tiles, do_tiles, delta_tiles, p_tile, ds_tiles,
            k_full, v_full, q_full, q_empty, do_full, do_empty, p_full, ds_full, ds_empty,
            stride_dqb, stride_dqh, stride_dqq, stride_dkb, stride_dkh, stride_dkk,
            N_QUERIES, N_KEYS, NUM_KV_HEADS, scale,
            HEADS_PER_KV_HEAD, D, STAGES, IS_CAUSAL, PIECES,
        )),
    ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
