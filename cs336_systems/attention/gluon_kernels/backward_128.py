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
    share_of_program,
    store_dkdv,
    visited,
)
from cs336_systems.attention.gluon_kernels.columns import (
    add_products,
    columns_of,
    parts_of,
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
def wait_for_sums(UNDER_WAY: gl.constexpr, dv, dk):
    """Wait for dv and dk, in parts of columns, while so many later products are under way."""
    results = warpgroup_mma_wait(UNDER_WAY, deps=dv + dk)
    if len(dv) == 2:
        return (results[0], results[1]), (results[2], results[3])
    else:  # noqa: RET505, Triton compiles what follows a return
        return (results[0],), (results[1],)


@gluon.jit
def dq_of(CONSUMER: gl.constexpr, task, ds_slot):
    """Issue dq = ds k (line 15), a consumer's columns of it, of both consumers' keys."""
    memory = task.memory
    WIDTH: gl.constexpr = dq_width(CONSUMER, task.config.HEAD_DIM)
    k0 = matrix(memory.k_tiles, 0, KEYS, task.config.D).slice(CONSUMER * DQ_COLUMNS, WIDTH, 1)
    k1 = matrix(memory.k_tiles, 1, KEYS, task.config.D).slice(CONSUMER * DQ_COLUMNS, WIDTH, 1)
    dq = gl.zeros([task.config.Q_TILE_SIZE, WIDTH], gl.float32, layout=mma(WIDTH))
    dq = warpgroup_mma(memory.ds.tiles.index(ds_slot * 2).permute((1, 0)), k0, dq, use_acc=False, is_async=True)
    return warpgroup_mma(memory.ds.tiles.index(ds_slot * 2 + 1).permute((1, 0)), k1, dq, is_async=True)


@gluon.jit
def add_dq(CONSUMER: gl.constexpr, task, dq, i, share):
    """Add a consumer's columns of the tile of dq of visit i in memory."""
    WIDTH: gl.constexpr = dq_width(CONSUMER, task.config.HEAD_DIM)
    q_tile, head = visited(i, share, task.config)
    row = share.q_start + q_tile * task.config.Q_TILE_SIZE
    tma.store_wait(0)  # the last addition has read the tile
    columns_of(matrix(task.memory.dq_tiles, CONSUMER, task.config.Q_TILE_SIZE, DQ_COLUMNS), 0, WIDTH).store(dq)
    fence_async_shared()
    async_add(task.dq, [share.batch, head, row, CONSUMER * DQ_COLUMNS], task.memory.dq_tiles.index(CONSUMER))


@gluon.jit
def compute(CONSUMER: gl.constexpr, task):
    """Compute 64 rows of dk and dv, and 64 columns of every tile of dq."""
    memory, sizes, scale_log2 = task.memory, task.sizes, task.scale_log2
    HEAD_DIM: gl.constexpr = task.config.HEAD_DIM
    D: gl.constexpr = task.config.D
    Q_TILE_SIZE: gl.constexpr = task.config.Q_TILE_SIZE
    STAGES: gl.constexpr = task.config.STAGES
    DS_STAGES: gl.constexpr = task.config.DS_STAGES
    ONE_HEAD: gl.constexpr = task.config.HEADS == task.config.SPLITS  # so visit i is tile i
    # If causal, the second consumer sees nothing of the first tile.
    SKIPS: gl.constexpr = task.config.IS_CAUSAL and ONE_HEAD and CONSUMER == 1
    # A consumer stores ds of a tile after dq of the last one. So once it has the other's ds of a tile, the other has
    # read all earlier ones, and with two slots it needs no barrier to store the next.
    FREES_DS: gl.constexpr = DS_STAGES == 1
    dtype: gl.constexpr = memory.k_tiles.dtype
    s_layout: gl.constexpr = mma(Q_TILE_SIZE)
    parts: gl.constexpr = result_parts(HEAD_DIM, D)
    # Products of one matrix over head vectors that are waited for together.
    PRODUCTS: gl.constexpr = len(parts_of(wgmma_columns(HEAD_DIM)))
    column_layout: gl.constexpr = gl.SliceLayout(0, s_layout)
    share = share_of_program(sizes, 2 * KEYS, task.config)
    k_start = share.k_start + CONSUMER * KEYS
    keys = k_start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, s_layout))
    full_from = gl.cdiv(k_start + KEYS - 1 - share.q_start, Q_TILE_SIZE)  # tiles of queries that see all these keys
    visits = share.visits
    first = 1 if SKIPS else 0
    dk = zeros_of(parts)
    dv = zeros_of(parts)
    mbarrier.wait(memory.kv_full.index(0), 0)
    mbarrier.wait(memory.kv_full.index(1), 0)
    k = matrix(memory.k_tiles, CONSUMER, KEYS, D)
    v = matrix(memory.v_tiles, CONSUMER, KEYS, D)
    if SKIPS:
        # ds of the first tile is 0. What there is of dq is the first consumer's part. A branch instead of predicates
        # adds 50 bytes of spills.
        mbarrier.wait(memory.q.full.index(0), 0, pred=visits > 0)
        mbarrier.arrive(memory.q.empty.index(0), count=1, pred=visits > 0)
        memory.ds.tiles.index(1).store(gl.zeros([KEYS, Q_TILE_SIZE], dtype, layout=s_layout))
        fence_async_shared()
        mbarrier.arrive(memory.ds.full.index(0), count=1, pred=visits > 0)
        mbarrier.wait(memory.ds.full.index(0), 0, pred=visits > 0)
        dq = warpgroup_mma_wait(0, deps=(dq_of(CONSUMER, task, 0),))
        if FREES_DS:
            mbarrier.arrive(memory.ds.empty.index(0), count=1, pred=visits > 0)
        if visits > 0:
            add_dq(CONSUMER, task, dq, 0, share)
    slot = first % STAGES
    mbarrier.wait(memory.q.full.index(slot), (first // STAGES) % 2, pred=first < visits)
    next_s = products_over(k, matrix(memory.q.tiles, slot, Q_TILE_SIZE, D), HEAD_DIM, Q_TILE_SIZE)
    next_s = warpgroup_mma_wait(0, deps=(next_s,))
    for i in range(first, visits):
        slot = i % STAGES
        tile, _ = visited(i, share, task.config)
        q = matrix(memory.q.tiles, slot, Q_TILE_SIZE, D)
        do = matrix(memory.do_tiles, slot, Q_TILE_SIZE, D)
        # p (line 11), while dp is multiplied (line 13).
        dp = products_over(v, do, HEAD_DIM, Q_TILE_SIZE)
        s = next_s * scale_log2 - memory.lse.index(slot).load(column_layout)[None, :]
        s = masked(s, keys, tile, share, full_from, sizes, task.config, column_layout)
        p = gl.exp2(s)
        # dv (line 12), while ds is computed (line 14).
        p_rounded = p.to(dtype)
        dp = warpgroup_mma_wait(0, deps=(dp,))
        dv = add_products(p_rounded, do, dv, parts)
        ds = (p * (dp - memory.delta.index(slot).load(column_layout)[None, :])).to(dtype)
        # dk (line 16), and ds to the other consumer.
        dk = add_products(ds, q, dk, parts)
        ds_slot = i % DS_STAGES
        phase = (i // DS_STAGES) % 2
        if FREES_DS:
            mbarrier.wait(memory.ds.empty.index(ds_slot), phase ^ 1)
        memory.ds.tiles.index(ds_slot * 2 + CONSUMER).store(ds)
        fence_async_shared()
        mbarrier.arrive(memory.ds.full.index(ds_slot), count=1)
        # dq += ds k (line 15), of both consumers' keys, added in memory.
        mbarrier.wait(memory.ds.full.index(ds_slot), phase)
        dq = dq_of(CONSUMER, task, ds_slot)
        # s of the next tile; after the last, of whatever lies there, which is never read. dk and dv are awaited before:
        # with their left operands in registers too, ptxas serializes (C7512).
        dv, dk = wait_for_sums(2, dv, dk)
        mbarrier.arrive(memory.q.empty.index(slot), count=1)
        ahead = (i + 1) % STAGES
        mbarrier.wait(memory.q.full.index(ahead), ((i + 1) // STAGES) % 2, pred=i + 1 < visits)
        next_s = products_over(k, matrix(memory.q.tiles, ahead, Q_TILE_SIZE, D), HEAD_DIM, Q_TILE_SIZE)
        dq = warpgroup_mma_wait(PRODUCTS, deps=(dq,))
        if FREES_DS:
            mbarrier.arrive(memory.ds.empty.index(ds_slot), count=1)
        add_dq(CONSUMER, task, dq, i, share)
        next_s = warpgroup_mma_wait(0, deps=(next_s,))
    tma.store_wait(0)
    store_dkdv(task, dk, dv, parts, (memory.v_tiles.index(CONSUMER),), share, CONSUMER)


@gluon.jit(do_not_specialize=["NUM_GROUPS", "ALL_HEADS", "HEADS_AT_ONCE"])
def flash_bwd_hopper_128_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, L_ptr, Delta_ptr,
    N_QUERIES, N_KEYS, NUM_GROUPS, ALL_HEADS, HEADS_AT_ONCE, scale, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, SPLITS: gl.constexpr, HEAD_DIM: gl.constexpr, D: gl.constexpr,
    Q_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr, DS_STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr,
    EVEN_QUERIES: gl.constexpr, EVEN_KEYS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Do the work of `flash_bwd_hopper_64_kernel` without a warp group for dq; tiles of `dq_desc` have DQ_COLUMNS."""
    memory = allocate(
        q_desc, k_desc, v_desc, do_desc, dq_desc, 2, DS_STAGES, 2, Q_TILE_SIZE, STAGES, DS_STAGES
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
        REGISTERS,
    )  # fmt: skip


@gluon.jit
def specialize(load, task, REGISTERS: gl.constexpr):
    """Run `load_tiles(*load)` in one warp group, and `compute(consumer, task)` in two others."""
    gl.warp_specialize([(load_tiles, load), (compute, (0, task)), (compute, (1, task))], [4, 4], [REGISTERS, REGISTERS])
