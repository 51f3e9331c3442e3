"""The backward of `backward_hopper` for head dimensions up to 64, in four warp groups.

One loads, two compute s, p, dp, ds, dv and dk of 64 keys each, and one multiplies ds with k and adds to dq: two rows of
dk and dv, 64 x 64 each, leave the consumers too few registers for a tile of dq, and it needs none of theirs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cs336_systems.attention.triton_kernels.backward_hopper import (
    KEYS,
    load_tiles,
    masked,
    store_dkdv,
    tiles_of_program,
    visited,
)
from cs336_systems.attention.triton_kernels.hopper import async_add, matrix, mma, operand


@gluon.jit
def compute_dkdv(
    dk_desc, dv_desc, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles, delta_tiles, ds_tiles,
    kv_full, full, empty, ds_full, ds_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
    CONSUMER: gl.constexpr, HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, Q_TILE_SIZE: gl.constexpr,
    STAGES: gl.constexpr, DS_STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, EVEN_QUERIES: gl.constexpr,
    EVEN_KEYS: gl.constexpr,
):  # fmt: skip
    """A consumer: 64 rows of dk and dv. s of the next tile is issued before dv and dk of this one are awaited."""
    dtype: gl.constexpr = dk_desc.dtype
    s_layout: gl.constexpr = mma(Q_TILE_SIZE)
    a_layout: gl.constexpr = operand(D)
    column_layout: gl.constexpr = gl.SliceLayout(0, s_layout)
    block_start, batch, kv_head, q_start, num_tiles = tiles_of_program(
        N_QUERIES, N_KEYS, NUM_KV_HEADS, 2 * KEYS, Q_TILE_SIZE, IS_CAUSAL
    )
    k_start = block_start + CONSUMER * KEYS
    keys = k_start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, s_layout))
    full_from = gl.cdiv(k_start + KEYS - 1 - q_start, Q_TILE_SIZE)  # tiles of queries that see all these keys
    visits = num_tiles * HEADS_PER_KV_HEAD
    dk = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    dv = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    mbarrier.wait(kv_full.index(CONSUMER), 0)
    k = matrix(k_tiles, CONSUMER, KEYS, D)
    v = matrix(v_tiles, CONSUMER, KEYS, D)
    zeros = gl.zeros([KEYS, Q_TILE_SIZE], gl.float32, layout=s_layout)
    mbarrier.wait(full.index(0), 0, pred=visits > 0)
    q = matrix(q_tiles, 0, Q_TILE_SIZE, D)
    next_s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    next_s = warpgroup_mma_wait(0, deps=(next_s,))
    for i in range(0, visits):
        slot = i % STAGES
        tile, _ = visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD)
        q = matrix(q_tiles, slot, Q_TILE_SIZE, D)
        do = matrix(do_tiles, slot, Q_TILE_SIZE, D)
        # p (line 11), while dp is multiplied (line 13).
        s = next_s
        dp = gl.zeros([KEYS, Q_TILE_SIZE], gl.float32, layout=s_layout)
        dp = warpgroup_mma(v, do.permute((1, 0)), dp, use_acc=False, is_async=True)
        s = s * scale_log2 - lse_tiles.index(slot).load(column_layout)[None, :]
        s = masked(
            s, keys, tile, q_start, full_from, num_tiles, N_QUERIES, N_KEYS,
            Q_TILE_SIZE, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS, column_layout,
        )  # fmt: skip
        p = gl.exp2(s)
        # dv (line 12), while ds is computed (line 14).
        dv = warpgroup_mma(gl.convert_layout(p.to(dtype), a_layout), do, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=(dp,))
        ds = (p * (dp - delta_tiles.index(slot).load(column_layout)[None, :])).to(dtype)
        # ds to the warp group of dq, and dk (line 16).
        ds_slot = i % DS_STAGES * 2 + CONSUMER
        mbarrier.wait(ds_empty.index(ds_slot), (i // DS_STAGES) % 2 ^ 1)
        ds_tiles.index(ds_slot).store(ds)
        fence_async_shared()
        mbarrier.arrive(ds_full.index(ds_slot), count=1)
        dk = warpgroup_mma(gl.convert_layout(ds, a_layout), q, dk, is_async=True)
        # s of the next tile; after the last, of whatever lies there, which is never read. All are awaited: an
        # accumulator in flight over the end of a loop makes ptxas serialize (C7514).
        ahead = (i + 1) % STAGES
        mbarrier.wait(full.index(ahead), ((i + 1) // STAGES) % 2, pred=i + 1 < visits)
        q_ahead = matrix(q_tiles, ahead, Q_TILE_SIZE, D)
        next_s = warpgroup_mma(k, q_ahead.permute((1, 0)), zeros, use_acc=False, is_async=True)
        dv, dk, next_s = warpgroup_mma_wait(0, deps=(dv, dk, next_s))
        mbarrier.arrive(empty.index(slot), count=1)
    store_dkdv(dk_desc, dv_desc, dk, dv, v, v_tiles.index(CONSUMER), scale, [batch, kv_head, k_start, 0])


@gluon.jit
def reduce_dq(
    dq_desc, k_tiles, ds_tiles, dq_tile, kv_full, ds_full, ds_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS,
    HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, Q_TILE_SIZE: gl.constexpr, DS_STAGES: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
):  # fmt: skip
    """dq += ds k (line 15), of both consumers' keys, added in memory."""
    _, batch, kv_head, q_start, num_tiles = tiles_of_program(
        N_QUERIES, N_KEYS, NUM_KV_HEADS, 2 * KEYS, Q_TILE_SIZE, IS_CAUSAL
    )
    k0 = matrix(k_tiles, 0, KEYS, D)
    k1 = matrix(k_tiles, 1, KEYS, D)
    mbarrier.wait(kv_full.index(0), 0)
    mbarrier.wait(kv_full.index(1), 0)
    for i in range(0, num_tiles * HEADS_PER_KV_HEAD):
        slot = i % DS_STAGES * 2
        phase = (i // DS_STAGES) % 2
        tile, head = visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD)
        dq = gl.zeros([Q_TILE_SIZE, D], gl.float32, layout=mma(D))
        mbarrier.wait(ds_full.index(slot), phase)
        dq = warpgroup_mma(ds_tiles.index(slot).permute((1, 0)), k0, dq, use_acc=False, is_async=True)
        mbarrier.wait(ds_full.index(slot + 1), phase)
        dq = warpgroup_mma(ds_tiles.index(slot + 1).permute((1, 0)), k1, dq, is_async=True)
        dq = warpgroup_mma_wait(0, deps=(dq,))
        mbarrier.arrive(ds_empty.index(slot), count=1)
        mbarrier.arrive(ds_empty.index(slot + 1), count=1)
        tma.store_wait(0)  # the last addition has read its tile
        matrix(dq_tile, 0, Q_TILE_SIZE, D).store(dq)
        fence_async_shared()
        async_add(dq_desc, [batch, head, q_start + tile * Q_TILE_SIZE, 0], dq_tile.index(0))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["NUM_KV_HEADS"])
def flash_bwd_hopper_64_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, L_ptr, Delta_ptr,
    N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, Q_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr,
    DS_STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, EVEN_QUERIES: gl.constexpr, EVEN_KEYS: gl.constexpr,
    REGISTERS: gl.constexpr, DQ_REGISTERS: gl.constexpr,
):  # fmt: skip
    """One program computes dk and dv of 128 keys of one head of one batch element, and adds their part of dq.

    STAGES tiles of q and do are in flight, and DS_STAGES of ds; EVEN_QUERIES and EVEN_KEYS: Q_TILE_SIZE and 128 divide
    the lengths. REGISTERS are those of a consumer's thread, DQ_REGISTERS of one of the warp group of dq.
    """
    dtype: gl.constexpr = q_desc.dtype
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, Q_TILE_SIZE], dtype)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, Q_TILE_SIZE, D], q_desc.layout)
    do_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, Q_TILE_SIZE, D], do_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, KEYS, D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, KEYS, D], v_desc.layout)
    ds_tiles = gl.allocate_shared_memory(dtype, [DS_STAGES * 2, KEYS, Q_TILE_SIZE], ds_layout)
    dq_tile = gl.allocate_shared_memory(gl.float32, [1, 1, 1, Q_TILE_SIZE, D], dq_desc.layout)
    lse_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, Q_TILE_SIZE], vector)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, Q_TILE_SIZE], vector)
    kv_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ds_full = gl.allocate_shared_memory(gl.int64, [DS_STAGES * 2, 1], mbarrier.MBarrierLayout())
    ds_empty = gl.allocate_shared_memory(gl.int64, [DS_STAGES * 2, 1], mbarrier.MBarrierLayout())
    for c in gl.static_range(2):
        mbarrier.init(kv_full.index(c), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=2)  # the copies of q and do, and the loading warps with lse and delta
        mbarrier.init(empty.index(s), count=2)
    for s in gl.static_range(DS_STAGES * 2):
        mbarrier.init(ds_full.index(s), count=1)
        mbarrier.init(ds_empty.index(s), count=1)
    fence_async_shared()

    gl.warp_specialize([
        (load_tiles, (
            q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles,
            delta_tiles, kv_full, full, empty, N_QUERIES, N_KEYS, NUM_KV_HEADS, HEADS_PER_KV_HEAD, Q_TILE_SIZE, STAGES,
            IS_CAUSAL,
        )),
        (compute_dkdv, (
            dk_desc, dv_desc, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles, delta_tiles, ds_tiles,
            kv_full, full, empty, ds_full, ds_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
            0, HEADS_PER_KV_HEAD, D, Q_TILE_SIZE, STAGES, DS_STAGES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS,
        )),
        (compute_dkdv, (
            dk_desc, dv_desc, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles, delta_tiles, ds_tiles,
            kv_full, full, empty, ds_full, ds_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
            1, HEADS_PER_KV_HEAD, D, Q_TILE_SIZE, STAGES, DS_STAGES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS,
        )),
        (reduce_dq, (
            dq_desc, k_tiles, ds_tiles, dq_tile, kv_full, ds_full, ds_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS,
            HEADS_PER_KV_HEAD, D, Q_TILE_SIZE, DS_STAGES, IS_CAUSAL,
        )),
    ], [4, 4, 4], [REGISTERS, REGISTERS, DQ_REGISTERS])  # fmt: skip
