"""The 16-bit backward for head dimensions of 65 to 128, in three warp groups (as in FlashAttention-3).

One group loads, two compute s, p, dp, ds, dv and dk of 64 keys each. Each consumer stores its ds in shared memory.
While dk is computed from registers, it multiplies the ds of both consumers with 64 columns of k, for dq.
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

from cs336_systems.attention import constants
from cs336_systems.attention.gluon_kernels.backward import (
    KEYS,
    Config,
    Task,
    allocate,
    load_tiles,
    masked,
    store_dkdv,
    tiles_of_program,
    visited,
)
from cs336_systems.attention.gluon_kernels.columns import (
    add_products,
    columns_of,
    products_over,
    result_parts,
    wgmma_columns,
    zeros_of,
)
from cs336_systems.attention.gluon_kernels.scaffold import Sizes, async_add, matrix, mma

DQ_COLUMNS = gl.constexpr(constants.DQ_COLUMNS)  # of a consumer


@gluon.constexpr_function
def dq_width(consumer, head_dim):
    """Return how many columns of dq a consumer computes; what its tile holds beyond is not in the tensor."""
    rest = wgmma_columns(head_dim) - DQ_COLUMNS
    return rest if consumer == 1 and rest in (16, 32) else DQ_COLUMNS


@gluon.jit
def wait_for_all(dv, dk, dq):
    """Wait for all products. dv and dk are in parts of columns."""
    results = warpgroup_mma_wait(0, deps=dv + dk + (dq,))
    if len(dv) == 2:
        return (results[0], results[1]), (results[2], results[3]), results[4]
    else:  # noqa: RET505, Triton compiles what follows a return
        return (results[0],), (results[1],), results[2]


@gluon.jit
def compute(CONSUMER: gl.constexpr, task):
    """Compute 64 rows of dk and dv, and 64 columns of every tile of dq."""
    memory, sizes, scale_log2 = task.memory, task.sizes, task.scale_log2
    HEAD_DIM: gl.constexpr = task.config.HEAD_DIM
    D: gl.constexpr = task.config.D
    Q_TILE_SIZE: gl.constexpr = task.config.Q_TILE_SIZE
    STAGES: gl.constexpr = task.config.STAGES
    DS_STAGES: gl.constexpr = task.config.DS_STAGES
    HEADS_PER_KV_HEAD: gl.constexpr = task.config.HEADS_PER_KV_HEAD
    dtype: gl.constexpr = task.dk.dtype
    s_layout: gl.constexpr = mma(Q_TILE_SIZE)
    parts: gl.constexpr = result_parts(HEAD_DIM, D)
    DQ_WIDTH: gl.constexpr = dq_width(CONSUMER, HEAD_DIM)
    column_layout: gl.constexpr = gl.SliceLayout(0, s_layout)
    block_start, batch, kv_head, q_start, num_tiles = tiles_of_program(
        sizes, 2 * KEYS, Q_TILE_SIZE, task.config.IS_CAUSAL
    )
    k_start = block_start + CONSUMER * KEYS
    keys = k_start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, s_layout))
    full_from = gl.cdiv(k_start + KEYS - 1 - q_start, Q_TILE_SIZE)  # tiles of queries that see all these keys
    dk = zeros_of(parts)
    dv = zeros_of(parts)
    mbarrier.wait(memory.kv_full.index(0), 0)
    mbarrier.wait(memory.kv_full.index(1), 0)
    k = matrix(memory.k_tiles, CONSUMER, KEYS, D)
    v = matrix(memory.v_tiles, CONSUMER, KEYS, D)
    k0 = matrix(memory.k_tiles, 0, KEYS, D).slice(CONSUMER * DQ_COLUMNS, DQ_WIDTH, 1)
    k1 = matrix(memory.k_tiles, 1, KEYS, D).slice(CONSUMER * DQ_COLUMNS, DQ_WIDTH, 1)
    for i in range(0, num_tiles * HEADS_PER_KV_HEAD):
        slot = i % STAGES
        tile, head = visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD)
        mbarrier.wait(memory.q.full.index(slot), (i // STAGES) % 2)
        q = matrix(memory.q.tiles, slot, Q_TILE_SIZE, D)
        do = matrix(memory.do_tiles, slot, Q_TILE_SIZE, D)
        # p (line 11), while dp is multiplied (line 13).
        s = products_over(k, q, HEAD_DIM, Q_TILE_SIZE)
        dp = products_over(v, do, HEAD_DIM, Q_TILE_SIZE)
        s = warpgroup_mma_wait(1, deps=(s,))
        s = s * scale_log2 - memory.lse.index(slot).load(column_layout)[None, :]
        s = masked(s, keys, tile, q_start, full_from, num_tiles, sizes, task.config, column_layout)
        p = gl.exp2(s)
        # dv (line 12), while ds is computed (line 14).
        p_rounded = p.to(dtype)
        dp = warpgroup_mma_wait(0, deps=(dp,))
        dv = add_products(p_rounded, do, dv, parts)
        ds = (p * (dp - memory.delta.index(slot).load(column_layout)[None, :])).to(dtype)
        # ds to the other consumer, and dk (line 16).
        ds_slot = i % DS_STAGES
        phase = (i // DS_STAGES) % 2
        mbarrier.wait(memory.ds.empty.index(ds_slot), phase ^ 1)
        memory.ds.tiles.index(ds_slot * 2 + CONSUMER).store(ds)
        fence_async_shared()
        mbarrier.arrive(memory.ds.full.index(ds_slot), count=1)
        dk = add_products(ds, q, dk, parts)
        # dq += ds k (line 15), of both consumers' keys, added in memory.
        mbarrier.wait(memory.ds.full.index(ds_slot), phase)
        dq = gl.zeros([Q_TILE_SIZE, DQ_WIDTH], gl.float32, layout=mma(DQ_WIDTH))
        dq = warpgroup_mma(memory.ds.tiles.index(ds_slot * 2).permute((1, 0)), k0, dq, use_acc=False, is_async=True)
        dq = warpgroup_mma(memory.ds.tiles.index(ds_slot * 2 + 1).permute((1, 0)), k1, dq, is_async=True)
        dv, dk, dq = wait_for_all(dv, dk, dq)
        mbarrier.arrive(memory.q.empty.index(slot), count=1)
        mbarrier.arrive(memory.ds.empty.index(ds_slot), count=1)
        tma.store_wait(0)  # the last addition has read its tile
        columns_of(matrix(memory.dq_tiles, CONSUMER, Q_TILE_SIZE, DQ_COLUMNS), 0, DQ_WIDTH).store(dq)
        fence_async_shared()
        row = q_start + tile * Q_TILE_SIZE
        async_add(task.dq, [batch, head, row, CONSUMER * DQ_COLUMNS], memory.dq_tiles.index(CONSUMER))
    tma.store_wait(0)
    store_dkdv(
        task.dk, task.dv, dk, dv, parts, v, memory.v_tiles.index(CONSUMER), task.scale, [batch, kv_head, k_start, 0]
    )


@gluon.jit(do_not_specialize=["NUM_KV_HEADS", "ALL_HEADS", "HEADS_AT_ONCE"])
def flash_bwd_hopper_128_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, L_ptr, Delta_ptr,
    N_QUERIES, N_KEYS, NUM_KV_HEADS, ALL_HEADS, HEADS_AT_ONCE, scale, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, HEAD_DIM: gl.constexpr, D: gl.constexpr, Q_TILE_SIZE: gl.constexpr,
    STAGES: gl.constexpr, DS_STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, EVEN_QUERIES: gl.constexpr,
    EVEN_KEYS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Do the work of `flash_bwd_hopper_64_kernel` without a warp group for dq; tiles of `dq_desc` have DQ_COLUMNS."""
    memory = allocate(
        q_desc, k_desc, v_desc, do_desc, dq_desc, 2, DS_STAGES, 2, Q_TILE_SIZE, STAGES, DS_STAGES
    )  # fmt: skip
    specialize(
        (
            q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, memory,
            Sizes(N_QUERIES, N_KEYS, NUM_KV_HEADS, ALL_HEADS, HEADS_AT_ONCE),
            Config(HEAD_DIM, D, Q_TILE_SIZE, STAGES, DS_STAGES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS, HEADS_PER_KV_HEAD),
        ),
        Task(
            dq_desc, dk_desc, dv_desc, memory,
            Sizes(N_QUERIES, N_KEYS, NUM_KV_HEADS, ALL_HEADS, HEADS_AT_ONCE), scale, scale_log2,
            Config(HEAD_DIM, D, Q_TILE_SIZE, STAGES, DS_STAGES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS, HEADS_PER_KV_HEAD),
        ),
        REGISTERS,
    )  # fmt: skip


@gluon.jit
def specialize(load, task, REGISTERS: gl.constexpr):
    """Run `load_tiles(*load)` in one warp group, and `compute(consumer, task)` in two others."""
    gl.warp_specialize([(load_tiles, load), (compute, (0, task)), (compute, (1, task))], [4, 4], [REGISTERS, REGISTERS])
