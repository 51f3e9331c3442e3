"""FlashAttention-2's forward, Algorithm 1 of Dao (2023), with FlashAttention-3's schedule (Shah et al. 2024).

One warp group loads; each other, a consumer, computes 64 rows of out. Keys are visited from the last tile to the first:
64 rows cross one tile of keys, so that only the first one visited holds a mask (the diagonal, or the end of the keys).
The scores of a tile are issued before p v of the tile visited before it, and the softmax runs while that is
multiplied (FlashAttention-3, section 3.2).
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

from cs336_systems.attention.triton_kernels.hopper import async_load, async_store, matrix, mma, operand

ROWS = gl.constexpr(64)  # of q in a consumer: one wgmma
LN_2 = gl.constexpr(0.6931471805599453)
LEAST_FLOAT32 = gl.constexpr(-3.4028234663852886e38)


@gluon.jit
def tile_of_program(N_QUERIES, NUM_HEADS, Q_TILE_SIZE: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """First query, batch and head of this program. The last tile of a head, the heaviest if causal, comes first."""
    num_tiles = gl.cdiv(N_QUERIES, Q_TILE_SIZE)
    program = gl.program_id(0)
    tile = program % num_tiles
    if IS_CAUSAL:
        tile = num_tiles - 1 - tile
    batch_head = program // num_tiles
    return tile * Q_TILE_SIZE, batch_head // NUM_HEADS, batch_head % NUM_HEADS


@gluon.jit
def last_key_tile(first_row, NUM_ROWS: gl.constexpr, N_KEYS, K_TILE_SIZE: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """The last tile of keys that any of these rows sees."""
    last_key = N_KEYS - 1
    if IS_CAUSAL:
        last_key = gl.minimum(last_key, first_row + NUM_ROWS - 1)
    return last_key // K_TILE_SIZE


@gluon.jit
def load_tiles(
    q_desc, k_desc, v_desc, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
    N_QUERIES, N_KEYS, NUM_HEADS,
    HEADS_PER_KV_HEAD: gl.constexpr, K_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
    IS_CAUSAL: gl.constexpr,
):  # fmt: skip
    """The loading warp group: q once, then a ring of STAGES tiles of k and of v, from the last to the first."""
    q_start, batch, head = tile_of_program(N_QUERIES, NUM_HEADS, ROWS * CONSUMERS, IS_CAUSAL)
    kv_head = head // HEADS_PER_KV_HEAD
    for c in gl.static_range(CONSUMERS):
        mbarrier.expect(q_full.index(c), q_desc.block_type.nbytes)
        async_load(q_desc, [batch, head, q_start + c * ROWS, 0], q_full.index(c), q_tiles.index(c))
    last = last_key_tile(q_start, ROWS * CONSUMERS, N_KEYS, K_TILE_SIZE, IS_CAUSAL)
    for i in range(0, last + 1):
        slot = i % STAGES
        free = (i // STAGES) % 2 ^ 1  # a new barrier counts as passed in phase 1
        row = (last - i) * K_TILE_SIZE
        mbarrier.wait(k_empty.index(slot), free)
        mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
        async_load(k_desc, [batch, kv_head, row, 0], k_full.index(slot), k_tiles.index(slot))
        mbarrier.wait(v_empty.index(slot), free)
        mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
        async_load(v_desc, [batch, kv_head, row, 0], v_full.index(slot), v_tiles.index(slot))


@gluon.jit
def skip_tiles(skipped, k_full, k_empty, v_full, v_empty, STAGES: gl.constexpr):
    """The first tiles of the ring, which only the consumers of later rows see."""
    for i in range(0, skipped):
        mbarrier.wait(k_full.index(i % STAGES), (i // STAGES) % 2)
        mbarrier.arrive(k_empty.index(i % STAGES), count=1)
        mbarrier.wait(v_full.index(i % STAGES), (i // STAGES) % 2)
        mbarrier.arrive(v_empty.index(i % STAGES), count=1)


@gluon.jit
def attend(
    o_desc, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
    N_QUERIES, N_KEYS, NUM_HEADS, scale_log2,
    CONSUMER: gl.constexpr, D: gl.constexpr, K_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr, IS_CAUSAL: gl.constexpr,
):  # fmt: skip
    """A consumer: ROWS rows of out and lse."""
    dtype: gl.constexpr = o_desc.dtype
    s_layout: gl.constexpr = mma(K_TILE_SIZE)
    o_layout: gl.constexpr = mma(D)
    p_layout: gl.constexpr = operand(D)
    o_row_layout: gl.constexpr = gl.SliceLayout(1, o_layout)

    block_start, batch, head = tile_of_program(N_QUERIES, NUM_HEADS, ROWS * CONSUMERS, IS_CAUSAL)
    q_start = block_start + CONSUMER * ROWS
    block_last = last_key_tile(block_start, ROWS * CONSUMERS, N_KEYS, K_TILE_SIZE, IS_CAUSAL)
    last = last_key_tile(q_start, ROWS, N_KEYS, K_TILE_SIZE, IS_CAUSAL)
    rows = q_start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
    q = matrix(q_tiles, CONSUMER, ROWS, D)

    skipped = block_last - last
    skip_tiles(skipped, k_full, k_empty, v_full, v_empty, STAGES)

    # The first tile, with the diagonal and the end of the keys. The least finite number: after a tile of scores that
    # are all -inf, -inf - -inf would be NaN.
    slot = skipped % STAGES
    mbarrier.wait(q_full.index(CONSUMER), 0)
    mbarrier.wait(k_full.index(slot), (skipped // STAGES) % 2)
    zeros = gl.zeros([ROWS, K_TILE_SIZE], gl.float32, layout=s_layout)
    k = matrix(k_tiles, slot, K_TILE_SIZE, D)
    scores = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(k_empty.index(slot), count=1)
    keys = last * K_TILE_SIZE + gl.arange(0, K_TILE_SIZE, layout=gl.SliceLayout(0, s_layout))
    seen = (keys < N_KEYS)[None, :]
    if IS_CAUSAL:
        seen = seen & (rows[:, None] >= keys[None, :])
    scores = gl.where(seen, scores, float("-inf"))
    row_max = gl.maximum(gl.max(scores, 1) * scale_log2, LEAST_FLOAT32)
    p32 = gl.exp2(scores * scale_log2 - row_max[:, None])
    row_sum = gl.sum(p32, 1)
    p = gl.convert_layout(p32.to(dtype), p_layout)
    acc = gl.zeros([ROWS, D], gl.float32, layout=o_layout)

    for i in range(skipped + 1, block_last + 1):
        slot = i % STAGES
        before = (i - 1) % STAGES
        mbarrier.wait(k_full.index(slot), (i // STAGES) % 2)
        s = gl.zeros([ROWS, K_TILE_SIZE], gl.float32, layout=s_layout)
        k = matrix(k_tiles, slot, K_TILE_SIZE, D)
        s = warpgroup_mma(q, k.permute((1, 0)), s, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), ((i - 1) // STAGES) % 2)
        acc = warpgroup_mma(p, matrix(v_tiles, before, K_TILE_SIZE, D), acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=(s,))
        mbarrier.arrive(k_empty.index(slot), count=1)
        # Lines 9 and 10, while p v of the tile before is multiplied.
        new_max = gl.maximum(row_max, gl.max(s, 1) * scale_log2)
        p32 = gl.exp2(s * scale_log2 - new_max[:, None])
        rescale = gl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + gl.sum(p32, 1)
        row_max = new_max
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(v_empty.index(before), count=1)
        p = gl.convert_layout(p32.to(dtype), p_layout)
        acc = acc * gl.convert_layout(rescale, o_row_layout)[:, None]

    slot = block_last % STAGES
    mbarrier.wait(v_full.index(slot), (block_last // STAGES) % 2)
    acc = warpgroup_mma(p, matrix(v_tiles, slot, K_TILE_SIZE, D), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    out = acc / gl.convert_layout(row_sum, o_row_layout)[:, None]
    q.store(out.to(dtype))  # q has done its part
    fence_async_shared()
    async_store(o_desc, [batch, head, q_start, 0], q_tiles.index(CONSUMER))
    lse = (row_max + gl.log2(row_sum)) * LN_2
    gl.store(L_ptr + (batch * NUM_HEADS + head).to(gl.int64) * N_QUERIES + rows, lse, mask=rows < N_QUERIES)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["NUM_HEADS"])
def flash_fwd_hopper_kernel(
    q_desc, k_desc, v_desc, o_desc, L_ptr, N_QUERIES, N_KEYS, NUM_HEADS, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, K_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr, IS_CAUSAL: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """One program computes 64 * CONSUMERS rows of out and lse (float32, natural) for one head of one batch element.

    CONSUMERS is 2 or 3, K_TILE_SIZE a multiple of 64, REGISTERS those of a consumer's thread; `scale_log2`, which is
    softmax_scale * log2(e), is positive: the maximum is taken of scores that it has not multiplied.
    """
    dtype: gl.constexpr = q_desc.dtype
    q_tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, ROWS, D], q_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, K_TILE_SIZE, D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, K_TILE_SIZE, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for c in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(c), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(k_full.index(s), count=1)
        mbarrier.init(v_full.index(s), count=1)
        mbarrier.init(k_empty.index(s), count=CONSUMERS)
        mbarrier.init(v_empty.index(s), count=CONSUMERS)
    fence_async_shared()

    if CONSUMERS == 2:
        gl.warp_specialize([
            (load_tiles, (
                q_desc, k_desc, v_desc, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
                N_QUERIES, N_KEYS, NUM_HEADS, HEADS_PER_KV_HEAD, K_TILE_SIZE, STAGES, CONSUMERS, IS_CAUSAL,
            )),
            (attend, (
                o_desc, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
                N_QUERIES, N_KEYS, NUM_HEADS, scale_log2, 0, D, K_TILE_SIZE, STAGES, CONSUMERS, IS_CAUSAL,
            )),
            (attend, (
                o_desc, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
                N_QUERIES, N_KEYS, NUM_HEADS, scale_log2, 1, D, K_TILE_SIZE, STAGES, CONSUMERS, IS_CAUSAL,
            )),
        ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (load_tiles, (
                q_desc, k_desc, v_desc, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
                N_QUERIES, N_KEYS, NUM_HEADS, HEADS_PER_KV_HEAD, K_TILE_SIZE, STAGES, CONSUMERS, IS_CAUSAL,
            )),
            (attend, (
                o_desc, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
                N_QUERIES, N_KEYS, NUM_HEADS, scale_log2, 0, D, K_TILE_SIZE, STAGES, CONSUMERS, IS_CAUSAL,
            )),
            (attend, (
                o_desc, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
                N_QUERIES, N_KEYS, NUM_HEADS, scale_log2, 1, D, K_TILE_SIZE, STAGES, CONSUMERS, IS_CAUSAL,
            )),
            (attend, (
                o_desc, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
                N_QUERIES, N_KEYS, NUM_HEADS, scale_log2, 2, D, K_TILE_SIZE, STAGES, CONSUMERS, IS_CAUSAL,
            )),
        ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
