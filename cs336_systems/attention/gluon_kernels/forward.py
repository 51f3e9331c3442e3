"""FlashAttention-2's forward, Algorithm 1 of Dao (2023), with FlashAttention-3's schedule (Shah et al. 2024).

Each program takes tiles of q in turn. One warp group loads, ahead of the others; each consumer computes 64 rows of out.
Keys are visited from the last tile to the first: 64 rows cross one tile of keys, so only the first tile visited holds a
mask (the diagonal, or the end of the keys), and if causal its second half may be masked whole. The scores of a tile are
issued before p v of the previous tile, and the softmax runs while that product does (FlashAttention-3, section 3.2).
With PING_PONG two consumers issue in turns, so that one's softmax runs while the other multiplies (section 3.1).
Head vectors lie in tiles of D columns, which are zero beyond HEAD_DIM and mostly left out of the products.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from cs336_systems.attention import constants
from cs336_systems.attention.constants import WGMMA_ROWS
from cs336_systems.attention.gluon_kernels.columns import (
    add_products,
    columns_of,
    products_over,
    result_parts,
    scaled_rows,
    start_of,
    wait_for,
    width_of,
    zeros_of,
)
from cs336_systems.attention.gluon_kernels.order import tile_at, turns_of
from cs336_systems.attention.gluon_kernels.pieces import load_pieces
from cs336_systems.attention.gluon_kernels.scaffold import (
    ROWS,
    Ring,
    Sizes,
    async_store,
    barriers,
    matrix,
    mma,
    operand,
    ring_barriers,
    tiles_like,
    two_rings,
)

LN_2 = gl.constexpr(constants.LN_2)
MIN_FLOAT32 = gl.constexpr(constants.MIN_FLOAT32)


class Memory(NamedTuple):
    """Shared memory of a forward: rings of q, with a tile for each consumer in a slot, and of k and v."""

    q: Any
    k: Any
    v: Any
    may_issue: Any
    """With PING_PONG, a barrier for each consumer: the other has issued its products."""


class TiledOut(NamedTuple):
    """out's descriptor, and a tile in shared memory for each consumer."""

    desc: Any
    tiles: Any


class Config(NamedTuple):
    """Compile-time choices of a forward."""

    HEAD_DIM: Any
    D: Any
    K_TILE_SIZE: Any
    STAGES: Any
    Q_STAGES: Any
    CONSUMERS: Any
    IS_CAUSAL: Any
    PIECES: Any
    HEADS_PER_KV_HEAD: Any
    HALVES: Any
    """Whether scores of the first tile of keys, of 2 * ROWS, leave out its second half where that is always masked."""

    ONE_TILE: Any
    """Whether each program takes one tile, so that there is no loop over tiles."""

    PAIRED: Any
    """Whether two of these programs on a multiprocessor get about the same work as any other two."""

    PING_PONG: Any
    """Whether two consumers, which visit the same tiles of keys, issue their products in turns."""


class Task(NamedTuple):
    """Arguments of a consumer of a forward."""

    out: Any
    lse_ptr: Any
    memory: Any
    sizes: Any
    scale_log2: Any
    config: Any


@gluon.jit
def allocate(q_desc, k_desc, v_desc, STAGES: gl.constexpr, Q_STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
             PIECES: gl.constexpr, PING_PONG: gl.constexpr):  # fmt: skip
    """Allocate the shared memory of a forward and initialize its barriers."""
    q_tiles = tiles_like(q_desc, Q_STAGES * CONSUMERS * PIECES)
    k_tiles = tiles_like(k_desc, STAGES * PIECES)
    v_tiles = tiles_like(v_desc, STAGES * PIECES)
    q_full, q_empty = ring_barriers(Q_STAGES * CONSUMERS, 1, 1)
    k_ring, v_ring = two_rings(k_tiles, v_tiles, STAGES, 1, CONSUMERS)
    may_issue = q_empty  # unused: a barrier that nobody waits for would share its memory with a tile
    if PING_PONG:
        may_issue = barriers(CONSUMERS)
        for c in gl.static_range(CONSUMERS):
            mbarrier.init(may_issue.index(c), count=1)
    fence_async_shared()
    return Memory(Ring(q_tiles, q_full, q_empty), k_ring, v_ring, may_issue)


@gluon.jit
def last_key_tile(first_row, NUM_ROWS: gl.constexpr, N_KEYS, K_TILE_SIZE: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """Return the last tile of keys that any of these rows sees."""
    last_key = N_KEYS - 1
    if IS_CAUSAL:
        last_key = gl.minimum(last_key, first_row + NUM_ROWS - 1)
    return last_key // K_TILE_SIZE


@gluon.constexpr_function
def first_keys(consumer, consumers, k_tile, halves):
    """Return of how many keys in the first tile visited a consumer computes scores.

    `halves` is for causal calls of no more queries than keys: there the diagonal of a consumer's rows is always in the
    same part of a tile. (A branch by the position was compiled to code that failed with triton 3.6.)
    """
    sees_half = consumers * WGMMA_ROWS % k_tile == 0 and consumer * WGMMA_ROWS % k_tile == 0
    return WGMMA_ROWS if halves and sees_half else k_tile


@gluon.jit
def load_tiles(q_desc, k_desc, v_desc, memory, sizes, config):
    """Load q of each tile, then its k and v through their rings, from the last tile of keys to the first."""
    if config.ONE_TILE:
        load_tile(q_desc, k_desc, v_desc, memory, sizes, config, 0, 0)
    else:
        visited = 0  # tiles of keys before
        for turn in range(0, turns_of(sizes, ROWS * config.CONSUMERS)):
            visited = load_tile(q_desc, k_desc, v_desc, memory, sizes, config, turn, visited)


@gluon.jit
def load_tile(q_desc, k_desc, v_desc, memory, sizes, config, turn, visited):
    """Load q, k and v of a tile; return the tiles of keys that the rings have held until then."""
    BLOCK_ROWS: gl.constexpr = ROWS * config.CONSUMERS
    q_start, batch, head = tile_at(turn, sizes, BLOCK_ROWS, config.IS_CAUSAL, config.PAIRED)
    kv_head = head // config.HEADS_PER_KV_HEAD
    for c in gl.static_range(config.CONSUMERS):
        slot = turn % config.Q_STAGES * config.CONSUMERS + c
        free = turn // config.Q_STAGES % 2 ^ 1  # a new barrier counts as passed in phase 1
        mbarrier.wait(memory.q.empty.index(slot), free)
        full = memory.q.full.index(slot)
        load_pieces(q_desc, batch, head, q_start + c * ROWS, full, memory.q.tiles, slot, config.PIECES)
    last = last_key_tile(q_start, BLOCK_ROWS, sizes.keys, config.K_TILE_SIZE, config.IS_CAUSAL)
    k_ring, v_ring = memory.k, memory.v
    for i in range(visited, visited + last + 1):
        slot = i % config.STAGES
        free = (i // config.STAGES) % 2 ^ 1
        row = (visited + last - i) * config.K_TILE_SIZE
        mbarrier.wait(k_ring.empty.index(slot), free)
        load_pieces(k_desc, batch, kv_head, row, k_ring.full.index(slot), k_ring.tiles, slot, config.PIECES)
        mbarrier.wait(v_ring.empty.index(slot), free)
        load_pieces(v_desc, batch, kv_head, row, v_ring.full.index(slot), v_ring.tiles, slot, config.PIECES)
    return visited + last + 1


@gluon.jit
def skip_tiles(start, end, k_ring, v_ring, STAGES: gl.constexpr):
    """Release tiles of the rings that only consumers of later rows see."""
    for i in range(start, end):
        mbarrier.wait(k_ring.full.index(i % STAGES), (i // STAGES) % 2)
        mbarrier.arrive(k_ring.empty.index(i % STAGES), count=1)
        mbarrier.wait(v_ring.full.index(i % STAGES), (i // STAGES) % 2)
        mbarrier.arrive(v_ring.empty.index(i % STAGES), count=1)


@gluon.jit
def attend(CONSUMER: gl.constexpr, task):
    """Compute ROWS rows of out and lse of each tile in one consumer."""
    if task.config.ONE_TILE:
        attend_tile(CONSUMER, task, 0, 0)
    else:
        visited = 0  # tiles of keys before
        for turn in range(0, turns_of(task.sizes, ROWS * task.config.CONSUMERS)):
            visited = attend_tile(CONSUMER, task, turn, visited)
    tma.store_wait(0)


@gluon.jit
def first_tile(q, k, first_key, q_start, task, KEYS: gl.constexpr):
    """Return p of a tile's first KEYS keys in the tile's layout, 0 beyond them, with the maximum and sum of its rows.

    The tile holds the diagonal or the end of the keys. Its products are waited for.
    """
    K_TILE_SIZE: gl.constexpr = task.config.K_TILE_SIZE
    row_layout: gl.constexpr = gl.SliceLayout(1, mma(K_TILE_SIZE))
    rows = q_start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, mma(KEYS)))
    keys = first_key + gl.arange(0, KEYS, layout=gl.SliceLayout(0, mma(KEYS)))
    if KEYS != K_TILE_SIZE:
        k = k.slice(0, KEYS, 0)
    scores = warpgroup_mma_wait(0, deps=(products_over(q, k, task.config.HEAD_DIM, KEYS),))
    seen = (keys < task.sizes.keys)[None, :]
    if task.config.IS_CAUSAL:
        seen = seen & (rows[:, None] >= keys[None, :])
    scores = gl.where(seen, scores, float("-inf"))
    row_max = gl.maximum(gl.max(scores, 1) * task.scale_log2, MIN_FLOAT32)
    p32 = gl.exp2(scores * task.scale_log2 - row_max[:, None])
    row_sum = gl.sum(p32, 1)
    p = p32.to(task.out.desc.dtype)
    if KEYS != K_TILE_SIZE:
        zeros = gl.zeros([ROWS, KEYS], p.dtype, layout=mma(KEYS))
        p = gl.join(p, zeros).permute((0, 2, 1)).reshape([ROWS, K_TILE_SIZE])
    p = gl.convert_layout(p, operand(width_of(result_parts(task.config.HEAD_DIM, task.config.D), 0)))
    return p, gl.convert_layout(row_max, row_layout), gl.convert_layout(row_sum, row_layout)


@gluon.jit
def attend_tile(CONSUMER: gl.constexpr, task, turn, visited):
    """Compute ROWS rows of out and lse; return the tiles of keys that the rings have held until then."""
    memory, sizes, scale_log2 = task.memory, task.sizes, task.scale_log2
    dtype: gl.constexpr = task.out.desc.dtype
    D: gl.constexpr = task.config.D
    K_TILE_SIZE: gl.constexpr = task.config.K_TILE_SIZE
    STAGES: gl.constexpr = task.config.STAGES
    BLOCK_ROWS: gl.constexpr = ROWS * task.config.CONSUMERS
    HEAD_DIM: gl.constexpr = task.config.HEAD_DIM
    parts: gl.constexpr = result_parts(HEAD_DIM, D)
    k_ring, v_ring = memory.k, memory.v

    block_start, batch, head = tile_at(turn, sizes, BLOCK_ROWS, task.config.IS_CAUSAL, task.config.PAIRED)
    q_start = block_start + CONSUMER * ROWS
    block_last = last_key_tile(block_start, BLOCK_ROWS, sizes.keys, K_TILE_SIZE, task.config.IS_CAUSAL)
    last = last_key_tile(q_start, ROWS, sizes.keys, K_TILE_SIZE, task.config.IS_CAUSAL)
    q_slot = turn % task.config.Q_STAGES * task.config.CONSUMERS + CONSUMER
    q = matrix(memory.q.tiles, q_slot, ROWS, D)

    first = visited + block_last - last
    end = visited + block_last + 1
    skip_tiles(visited, first, k_ring, v_ring, STAGES)

    slot = first % STAGES
    mbarrier.wait(memory.q.full.index(q_slot), turn // task.config.Q_STAGES % 2)
    mbarrier.wait(k_ring.full.index(slot), (first // STAGES) % 2)
    k = matrix(k_ring.tiles, slot, K_TILE_SIZE, D)
    first_key = last * K_TILE_SIZE
    KEYS: gl.constexpr = first_keys(CONSUMER, task.config.CONSUMERS, K_TILE_SIZE, task.config.HALVES)
    p, row_max, row_sum = first_tile(q, k, first_key, q_start, task, KEYS)
    mbarrier.arrive(k_ring.empty.index(slot), count=1)
    acc = zeros_of(parts)

    for i in range(first + 1, end):
        slot = i % STAGES
        before = (i - 1) % STAGES
        mbarrier.wait(k_ring.full.index(slot), (i // STAGES) % 2)
        if task.config.PING_PONG:
            # Of each turn's tiles, one was multiplied before the loop. Consumer 0 is the first to issue.
            mbarrier.wait(v_ring.full.index(before), ((i - 1) // STAGES) % 2)
            mbarrier.wait(memory.may_issue.index(CONSUMER), (i - turn - 1) % 2 ^ 1 - CONSUMER)
        s = products_over(q, matrix(k_ring.tiles, slot, K_TILE_SIZE, D), HEAD_DIM, K_TILE_SIZE)
        if not task.config.PING_PONG:
            mbarrier.wait(v_ring.full.index(before), ((i - 1) // STAGES) % 2)
        acc = add_products(p, matrix(v_ring.tiles, before, K_TILE_SIZE, D), acc, parts)
        if task.config.PING_PONG:
            mbarrier.arrive(memory.may_issue.index(1 - CONSUMER), count=1)
        s = warpgroup_mma_wait(len(parts), deps=(s,))
        mbarrier.arrive(k_ring.empty.index(slot), count=1)
        # Lines 9 and 10, while p v of the previous tile runs.
        new_max = gl.maximum(row_max, gl.max(s, 1) * scale_log2)
        p32 = gl.exp2(s * scale_log2 - new_max[:, None])
        rescale = gl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + gl.sum(p32, 1)
        row_max = new_max
        acc = wait_for(acc)
        mbarrier.arrive(v_ring.empty.index(before), count=1)
        p = gl.convert_layout(p32.to(dtype), operand(width_of(parts, 0)))
        acc = scaled_rows(acc, rescale, parts)

    mbarrier.arrive(memory.q.empty.index(q_slot), count=1)
    slot = (end - 1) % STAGES
    mbarrier.wait(v_ring.full.index(slot), ((end - 1) // STAGES) % 2)
    acc = wait_for(add_products(p, matrix(v_ring.tiles, slot, K_TILE_SIZE, D), acc, parts))
    mbarrier.arrive(v_ring.empty.index(slot), count=1)
    tma.store_wait(0)  # the last tile of out has been read
    out_tile = matrix(task.out.tiles, CONSUMER, ROWS, D)
    for i in gl.static_range(len(parts)):
        out = acc[i] / gl.convert_layout(row_sum, gl.SliceLayout(1, mma(width_of(parts, i))))[:, None]
        columns_of(out_tile, start_of(parts, i), width_of(parts, i)).store(out.to(dtype))
    fence_async_shared()
    async_store(task.out.desc, [batch, head, q_start, 0], task.out.tiles.index(CONSUMER))
    rows = q_start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, mma(K_TILE_SIZE)))
    store_lse(task.lse_ptr, row_max, row_sum, batch, head, rows, sizes)
    return end


@gluon.jit
def store_lse(L_ptr, row_max, row_sum, batch, head, rows, sizes):
    """Store the natural-log log-sum-exp of rows whose maximum and sum are in base 2."""
    lse = (row_max + gl.log2(row_sum)) * LN_2
    gl.store(L_ptr + (batch * sizes.heads + head).to(gl.int64) * sizes.queries + rows, lse, mask=rows < sizes.queries)


@gluon.jit(do_not_specialize=["NUM_HEADS", "ALL_HEADS", "HEADS_AT_ONCE"])
def flash_fwd_hopper_kernel(
    q_desc, k_desc, v_desc, o_desc, L_ptr, N_QUERIES, N_KEYS, NUM_HEADS, ALL_HEADS, HEADS_AT_ONCE, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, HEAD_DIM: gl.constexpr, D: gl.constexpr, K_TILE_SIZE: gl.constexpr,
    STAGES: gl.constexpr, Q_STAGES: gl.constexpr, CONSUMERS: gl.constexpr, IS_CAUSAL: gl.constexpr,
    REGISTERS: gl.constexpr, HALVES: gl.constexpr, ONE_TILE: gl.constexpr, PAIRED: gl.constexpr,
    PING_PONG: gl.constexpr,
):  # fmt: skip
    """Compute out and lse (float32, natural) in tiles of 64 * CONSUMERS rows of a head, as many at once as programs.

    CONSUMERS is 1 to 4, K_TILE_SIZE a multiple of 64, 128 with HALVES, REGISTERS those of a consumer's thread; with
    ONE_TILE programs are as many as tiles, with PING_PONG CONSUMERS is 2 and K_TILE_SIZE 128. `scale_log2`, which is
    softmax_scale * log2(e), is positive: the maximum is taken of unscaled scores.
    """
    memory = allocate(q_desc, k_desc, v_desc, STAGES, Q_STAGES, CONSUMERS, 1, PING_PONG)
    specialize(
        (
            q_desc, k_desc, v_desc, memory, Sizes(N_QUERIES, N_KEYS, NUM_HEADS, ALL_HEADS, HEADS_AT_ONCE),
            Config(HEAD_DIM, D, K_TILE_SIZE, STAGES, Q_STAGES, CONSUMERS, IS_CAUSAL, 1, HEADS_PER_KV_HEAD, HALVES,
                   ONE_TILE, PAIRED, PING_PONG),
        ),
        Task(
            TiledOut(o_desc, tiles_like(o_desc, CONSUMERS)), L_ptr, memory,
            Sizes(N_QUERIES, N_KEYS, NUM_HEADS, ALL_HEADS, HEADS_AT_ONCE), scale_log2,
            Config(HEAD_DIM, D, K_TILE_SIZE, STAGES, Q_STAGES, CONSUMERS, IS_CAUSAL, 1, HEADS_PER_KV_HEAD, HALVES,
                   ONE_TILE, PAIRED, PING_PONG),
        ),
        CONSUMERS, REGISTERS,
    )  # fmt: skip


@gluon.jit
def specialize(load, task, CONSUMERS: gl.constexpr, REGISTERS: gl.constexpr):
    """Run `load_tiles(*load)` in one warp group, and `attend(consumer, task)` in each of 1 to 4 others."""
    if CONSUMERS == 1:
        gl.warp_specialize([(load_tiles, load), (attend, (0, task))], [4], [REGISTERS])
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [(load_tiles, load), (attend, (0, task)), (attend, (1, task))], [4, 4], [REGISTERS, REGISTERS]
        )
    elif CONSUMERS == 4:
        gl.warp_specialize(
            [(load_tiles, load), (attend, (0, task)), (attend, (1, task)), (attend, (2, task)), (attend, (3, task))],
            [4, 4, 4, 4],
            [REGISTERS, REGISTERS, REGISTERS, REGISTERS],
        )
    else:
        gl.warp_specialize(
            [(load_tiles, load), (attend, (0, task)), (attend, (1, task)), (attend, (2, task))],
            [4, 4, 4],
            [REGISTERS, REGISTERS, REGISTERS],
        )
