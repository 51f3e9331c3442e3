"""The backward of `backward_hopper` for head dimension 128, in three warp groups (FlashAttention-3's way).

One loads, two compute s, p, dp, ds, dv and dk of 64 keys each. Each leaves its ds in shared memory, and while dk is
multiplied from registers takes the ds of both and multiplies 64 columns of dq.
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

DQ_COLUMNS = gl.constexpr(64)  # of a consumer


@gluon.jit
def compute(
    dq_desc, dk_desc, dv_desc, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles, delta_tiles, ds_tiles, dq_tiles,
    kv_full, full, empty, ds_full, ds_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
    CONSUMER: gl.constexpr, HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, Q_TILE_SIZE: gl.constexpr,
    STAGES: gl.constexpr, DS_STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, EVEN_QUERIES: gl.constexpr,
    EVEN_KEYS: gl.constexpr,
):  # fmt: skip
    """A consumer: 64 rows of dk and dv, and 64 columns of every tile of dq."""
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
    dk = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    dv = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    mbarrier.wait(kv_full.index(0), 0)
    mbarrier.wait(kv_full.index(1), 0)
    k = matrix(k_tiles, CONSUMER, KEYS, D)
    v = matrix(v_tiles, CONSUMER, KEYS, D)
    k0 = matrix(k_tiles, 0, KEYS, D).slice(CONSUMER * DQ_COLUMNS, DQ_COLUMNS, 1)
    k1 = matrix(k_tiles, 1, KEYS, D).slice(CONSUMER * DQ_COLUMNS, DQ_COLUMNS, 1)
    for i in range(0, num_tiles * HEADS_PER_KV_HEAD):
        slot = i % STAGES
        tile, head = visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD)
        mbarrier.wait(full.index(slot), (i // STAGES) % 2)
        q = matrix(q_tiles, slot, Q_TILE_SIZE, D)
        do = matrix(do_tiles, slot, Q_TILE_SIZE, D)
        # p (line 11), while dp is multiplied (line 13).
        s = gl.zeros([KEYS, Q_TILE_SIZE], gl.float32, layout=s_layout)
        s = warpgroup_mma(k, q.permute((1, 0)), s, use_acc=False, is_async=True)
        dp = gl.zeros([KEYS, Q_TILE_SIZE], gl.float32, layout=s_layout)
        dp = warpgroup_mma(v, do.permute((1, 0)), dp, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(1, deps=(s,))
        s = s * scale_log2 - lse_tiles.index(slot).load(column_layout)[None, :]
        s = masked(
            s, keys, tile, q_start, full_from, num_tiles, N_QUERIES, N_KEYS,
            Q_TILE_SIZE, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS, column_layout,
        )  # fmt: skip
        p = gl.exp2(s)
        # dv (line 12), while ds is computed (line 14).
        p_rounded = p.to(dtype)
        dp = warpgroup_mma_wait(0, deps=(dp,))
        dv = warpgroup_mma(gl.convert_layout(p_rounded, a_layout), do, dv, is_async=True)
        ds = (p * (dp - delta_tiles.index(slot).load(column_layout)[None, :])).to(dtype)
        # ds to the other consumer, and dk (line 16).
        ds_slot = i % DS_STAGES
        phase = (i // DS_STAGES) % 2
        mbarrier.wait(ds_empty.index(ds_slot), phase ^ 1)
        ds_tiles.index(ds_slot * 2 + CONSUMER).store(ds)
        fence_async_shared()
        mbarrier.arrive(ds_full.index(ds_slot), count=1)
        dk = warpgroup_mma(gl.convert_layout(ds, a_layout), q, dk, is_async=True)
        # dq += ds k (line 15), of both consumers' keys, added in memory.
        mbarrier.wait(ds_full.index(ds_slot), phase)
        dq = gl.zeros([Q_TILE_SIZE, DQ_COLUMNS], gl.float32, layout=mma(DQ_COLUMNS))
        dq = warpgroup_mma(ds_tiles.index(ds_slot * 2).permute((1, 0)), k0, dq, use_acc=False, is_async=True)
        dq = warpgroup_mma(ds_tiles.index(ds_slot * 2 + 1).permute((1, 0)), k1, dq, is_async=True)
        dv, dk, dq = warpgroup_mma_wait(0, deps=(dv, dk, dq))
        mbarrier.arrive(empty.index(slot), count=1)
        mbarrier.arrive(ds_empty.index(ds_slot), count=1)
        tma.store_wait(0)  # the last addition has read its tile
        matrix(dq_tiles, CONSUMER, Q_TILE_SIZE, DQ_COLUMNS).store(dq)
        fence_async_shared()
        row = q_start + tile * Q_TILE_SIZE
        async_add(dq_desc, [batch, head, row, CONSUMER * DQ_COLUMNS], dq_tiles.index(CONSUMER))
    tma.store_wait(0)
    store_dkdv(dk_desc, dv_desc, dk, dv, v, v_tiles.index(CONSUMER), scale, [batch, kv_head, k_start, 0])


@gluon.jit(do_not_specialize=["NUM_KV_HEADS"])
def flash_bwd_hopper_128_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, L_ptr, Delta_ptr,
    N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, Q_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr,
    DS_STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, EVEN_QUERIES: gl.constexpr, EVEN_KEYS: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """As `flash_bwd_hopper_64_kernel`, without its warp group of dq; tiles of `dq_desc` are DQ_COLUMNS wide."""
    dtype: gl.constexpr = q_desc.dtype
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, Q_TILE_SIZE], dtype)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, Q_TILE_SIZE, D], q_desc.layout)
    do_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, Q_TILE_SIZE, D], do_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, KEYS, D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [2, 1, 1, KEYS, D], v_desc.layout)
    ds_tiles = gl.allocate_shared_memory(dtype, [DS_STAGES * 2, KEYS, Q_TILE_SIZE], ds_layout)
    dq_tiles = gl.allocate_shared_memory(gl.float32, [2, 1, 1, Q_TILE_SIZE, DQ_COLUMNS], dq_desc.layout)
    lse_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, Q_TILE_SIZE], vector)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, Q_TILE_SIZE], vector)
    kv_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ds_full = gl.allocate_shared_memory(gl.int64, [DS_STAGES, 1], mbarrier.MBarrierLayout())
    ds_empty = gl.allocate_shared_memory(gl.int64, [DS_STAGES, 1], mbarrier.MBarrierLayout())
    for c in gl.static_range(2):
        mbarrier.init(kv_full.index(c), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=2)
        mbarrier.init(empty.index(s), count=2)
    for s in gl.static_range(DS_STAGES):
        mbarrier.init(ds_full.index(s), count=2)
        mbarrier.init(ds_empty.index(s), count=2)
    fence_async_shared()

    gl.warp_specialize([
        (load_tiles, (
            q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles,
            delta_tiles, kv_full, full, empty, N_QUERIES, N_KEYS, NUM_KV_HEADS, HEADS_PER_KV_HEAD, Q_TILE_SIZE, STAGES,
            IS_CAUSAL,
        )),
        (compute, (
            dq_desc, dk_desc, dv_desc, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles, delta_tiles, ds_tiles, dq_tiles,
            kv_full, full, empty, ds_full, ds_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
            0, HEADS_PER_KV_HEAD, D, Q_TILE_SIZE, STAGES, DS_STAGES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS,
        )),
        (compute, (
            dq_desc, dk_desc, dv_desc, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles, delta_tiles, ds_tiles, dq_tiles,
            kv_full, full, empty, ds_full, ds_empty, N_QUERIES, N_KEYS, NUM_KV_HEADS, scale, scale_log2,
            1, HEADS_PER_KV_HEAD, D, Q_TILE_SIZE, STAGES, DS_STAGES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS,
        )),
    ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
