"""The 16-bit backward for head dimensions up to 64, in four warp groups.

One group loads, two compute s, p, dp, ds, dv and dk of 64 keys each, and one multiplies ds with k and adds the product
to dq. With dk and dv, 64 x 64 each, the consumers have too few registers left for a tile of dq, which needs nothing
else that they hold.
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

from cs336_systems.attention.gluon_kernels.backward import (
    KEYS,
    Config,
    Task,
    allocate,
    load_tiles,
    masked,
    share_of_program,
    store_dkdv,
    visited,
)
from cs336_systems.attention.gluon_kernels.columns import parts_of
from cs336_systems.attention.gluon_kernels.scaffold import Sizes, async_add, matrix, mma, operand


@gluon.jit
def compute_dkdv(CONSUMER: gl.constexpr, task):
    """Compute 64 rows of dk and dv. s of the next tile is issued before dv and dk of this one are awaited."""
    memory, sizes, scale_log2 = task.memory, task.sizes, task.scale_log2
    D: gl.constexpr = task.config.D
    Q_TILE_SIZE: gl.constexpr = task.config.Q_TILE_SIZE
    STAGES: gl.constexpr = task.config.STAGES
    DS_STAGES: gl.constexpr = task.config.DS_STAGES
    dtype: gl.constexpr = memory.k_tiles.dtype
    s_layout: gl.constexpr = mma(Q_TILE_SIZE)
    a_layout: gl.constexpr = operand(D)
    column_layout: gl.constexpr = gl.SliceLayout(0, s_layout)
    share = share_of_program(sizes, 2 * KEYS, task.config)
    k_start = share.k_start + CONSUMER * KEYS
    keys = k_start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, s_layout))
    full_from = gl.cdiv(k_start + KEYS - 1 - share.q_start, Q_TILE_SIZE)  # tiles of queries that see all these keys
    visits = share.visits
    dk = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    dv = gl.zeros([KEYS, D], gl.float32, layout=mma(D))
    mbarrier.wait(memory.kv_full.index(CONSUMER), 0)
    k = matrix(memory.k_tiles, CONSUMER, KEYS, D)
    v = matrix(memory.v_tiles, CONSUMER, KEYS, D)
    zeros = gl.zeros([KEYS, Q_TILE_SIZE], gl.float32, layout=s_layout)
    mbarrier.wait(memory.q.full.index(0), 0, pred=visits > 0)
    q = matrix(memory.q.tiles, 0, Q_TILE_SIZE, D)
    next_s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    next_s = warpgroup_mma_wait(0, deps=(next_s,))
    for i in range(0, visits):
        slot = i % STAGES
        tile, _ = visited(i, share, task.config)
        q = matrix(memory.q.tiles, slot, Q_TILE_SIZE, D)
        do = matrix(memory.do_tiles, slot, Q_TILE_SIZE, D)
        # p (line 11), while dp is multiplied (line 13).
        s = next_s
        dp = gl.zeros([KEYS, Q_TILE_SIZE], gl.float32, layout=s_layout)
        dp = warpgroup_mma(v, do.permute((1, 0)), dp, use_acc=False, is_async=True)
        s = s * scale_log2 - memory.lse.index(slot).load(column_layout)[None, :]
        s = masked(s, keys, tile, share, full_from, sizes, task.config, column_layout)
        p = gl.exp2(s)
        # dv (line 12), while ds is computed (line 14).
        dv = warpgroup_mma(gl.convert_layout(p.to(dtype), a_layout), do, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=(dp,))
        ds = (p * (dp - memory.delta.index(slot).load(column_layout)[None, :])).to(dtype)
        # ds to the warp group of dq, and dk (line 16).
        ds_slot = i % DS_STAGES * 2 + CONSUMER
        mbarrier.wait(memory.ds.empty.index(ds_slot), (i // DS_STAGES) % 2 ^ 1)
        memory.ds.tiles.index(ds_slot).store(ds)
        fence_async_shared()
        mbarrier.arrive(memory.ds.full.index(ds_slot), count=1)
        dk = warpgroup_mma(gl.convert_layout(ds, a_layout), q, dk, is_async=True)
        # s of the next tile; after the last, of whatever lies there, which is never read. All are awaited: an
        # accumulator in flight over the end of a loop makes ptxas serialize (C7514).
        ahead = (i + 1) % STAGES
        mbarrier.wait(memory.q.full.index(ahead), ((i + 1) // STAGES) % 2, pred=i + 1 < visits)
        q_ahead = matrix(memory.q.tiles, ahead, Q_TILE_SIZE, D)
        next_s = warpgroup_mma(k, q_ahead.permute((1, 0)), zeros, use_acc=False, is_async=True)
        dv, dk, next_s = warpgroup_mma_wait(0, deps=(dv, dk, next_s))
        mbarrier.arrive(memory.q.empty.index(slot), count=1)
    store_dkdv(task, (dk,), (dv,), parts_of(D), (memory.v_tiles.index(CONSUMER),), share, CONSUMER)


@gluon.jit
def reduce_dq(task):
    """Compute dq += ds k (line 15), of both consumers' keys, added in memory."""
    memory, sizes = task.memory, task.sizes
    D: gl.constexpr = task.config.D
    Q_TILE_SIZE: gl.constexpr = task.config.Q_TILE_SIZE
    DS_STAGES: gl.constexpr = task.config.DS_STAGES
    share = share_of_program(sizes, 2 * KEYS, task.config)
    k0 = matrix(memory.k_tiles, 0, KEYS, D)
    k1 = matrix(memory.k_tiles, 1, KEYS, D)
    mbarrier.wait(memory.kv_full.index(0), 0)
    mbarrier.wait(memory.kv_full.index(1), 0)
    for i in range(0, share.visits):
        slot = i % DS_STAGES * 2
        phase = (i // DS_STAGES) % 2
        tile, head = visited(i, share, task.config)
        dq = gl.zeros([Q_TILE_SIZE, D], gl.float32, layout=mma(D))
        mbarrier.wait(memory.ds.full.index(slot), phase)
        dq = warpgroup_mma(memory.ds.tiles.index(slot).permute((1, 0)), k0, dq, use_acc=False, is_async=True)
        mbarrier.wait(memory.ds.full.index(slot + 1), phase)
        dq = warpgroup_mma(memory.ds.tiles.index(slot + 1).permute((1, 0)), k1, dq, is_async=True)
        dq = warpgroup_mma_wait(0, deps=(dq,))
        mbarrier.arrive(memory.ds.empty.index(slot), count=1)
        mbarrier.arrive(memory.ds.empty.index(slot + 1), count=1)
        tma.store_wait(0)  # the last addition has read its tile
        matrix(memory.dq_tiles, 0, Q_TILE_SIZE, D).store(dq)
        fence_async_shared()
        async_add(task.dq, [share.batch, head, share.q_start + tile * Q_TILE_SIZE, 0], memory.dq_tiles.index(0))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["NUM_GROUPS", "ALL_HEADS", "HEADS_AT_ONCE"])
def flash_bwd_hopper_64_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, L_ptr, Delta_ptr,
    N_QUERIES, N_KEYS, NUM_GROUPS, ALL_HEADS, HEADS_AT_ONCE, scale, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, SPLITS: gl.constexpr, HEAD_DIM: gl.constexpr, D: gl.constexpr,
    Q_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr, DS_STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr,
    EVEN_QUERIES: gl.constexpr, EVEN_KEYS: gl.constexpr, REGISTERS: gl.constexpr, DQ_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of 128 keys of one head of one batch element, and add their part of dq.

    dq is left without `scale`: `flash_bwd_round_kernel` multiplies and rounds.

    STAGES tiles of q and do are in flight, and DS_STAGES of ds. EVEN_QUERIES and EVEN_KEYS: Q_TILE_SIZE and 128 divide
    the lengths. REGISTERS are those of a consumer's thread, DQ_REGISTERS those of a thread of dq's warp group.
    """
    memory = allocate(
        q_desc, k_desc, v_desc, do_desc, dq_desc, 1, DS_STAGES * 2, 1, Q_TILE_SIZE, STAGES, DS_STAGES
    )  # fmt: skip
    specialize(
        (
            q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, memory,
            Sizes(N_QUERIES, N_KEYS, NUM_GROUPS, ALL_HEADS, HEADS_AT_ONCE),
            Config(HEAD_DIM, D, Q_TILE_SIZE, STAGES, DS_STAGES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS,
                HEADS_PER_KV_HEAD, SPLITS),
        ),
        Task(
            dq_desc, dk_desc, dv_desc, memory,
            Sizes(N_QUERIES, N_KEYS, NUM_GROUPS, ALL_HEADS, HEADS_AT_ONCE), scale, scale_log2,
            Config(HEAD_DIM, D, Q_TILE_SIZE, STAGES, DS_STAGES, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS,
                HEADS_PER_KV_HEAD, SPLITS),
        ),
        REGISTERS, DQ_REGISTERS,
    )  # fmt: skip


@gluon.jit
def specialize(load, task, REGISTERS: gl.constexpr, DQ_REGISTERS: gl.constexpr):
    """Run `load_tiles(*load)`, two consumers and `reduce_dq(task)` in a warp group each."""
    gl.warp_specialize(
        [(load_tiles, load), (compute_dkdv, (0, task)), (compute_dkdv, (1, task)), (reduce_dq, (task,))],
        [4, 4, 4],
        [REGISTERS, REGISTERS, DQ_REGISTERS],
    )
