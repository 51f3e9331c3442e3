"""FlashAttention-2's backward, Algorithm 2 of Dao (2023), in five products a tile: what both head dimensions share.

A program has 128 keys, 64 for each of two warp groups, the consumers, which hold their rows of dk and dv in registers
and visit the tiles of queries. dq is summed over programs in memory: a tile of it is added by the copy engine (TMA),
in float32, in whatever order the programs come, so that the last bits of two runs differ. Scores are transposed, keys
by queries: p and ds then lie where a wgmma takes its left operand for dv and dk.

`scale` is softmax_scale; `scale_log2` is softmax_scale * log2(e), for the scores, which are in base 2 as in the
forward. dq comes without `scale`: `flash_bwd_round_dq_kernel` multiplies and rounds.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from cs336_systems.attention.triton_kernels.hopper import async_load, async_store

KEYS = gl.constexpr(64)  # of a consumer
LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def tiles_of_program(
    N_QUERIES, N_KEYS, NUM_KV_HEADS, K_TILE_SIZE: gl.constexpr, Q_TILE_SIZE: gl.constexpr, IS_CAUSAL: gl.constexpr
):  # fmt: skip
    """First key, batch, key head, first query and number of query tiles. The first tile of keys is the heaviest."""
    num_key_tiles = gl.cdiv(N_KEYS, K_TILE_SIZE)
    program = gl.program_id(0)
    k_start = program % num_key_tiles * K_TILE_SIZE
    batch_head = program // num_key_tiles
    q_start = k_start * 0
    if IS_CAUSAL:
        q_start = k_start // Q_TILE_SIZE * Q_TILE_SIZE
    num_tiles = gl.maximum(gl.cdiv(N_QUERIES - q_start, Q_TILE_SIZE), 0)
    return k_start, batch_head // NUM_KV_HEADS, batch_head % NUM_KV_HEADS, q_start, num_tiles


@gluon.jit
def visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD: gl.constexpr):
    """Tile and query head of visit i: all tiles of the first query head that kv_head serves, then of the next."""
    tile = i
    head = kv_head
    if HEADS_PER_KV_HEAD > 1:
        tile = i % num_tiles
        head = kv_head * HEADS_PER_KV_HEAD + i // num_tiles
    return tile, head


@gluon.jit
def load_tiles(
    q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, q_tiles, k_tiles, v_tiles, do_tiles, lse_tiles, delta_tiles,
    kv_full, full, empty, N_QUERIES, N_KEYS, NUM_KV_HEADS,
    HEADS_PER_KV_HEAD: gl.constexpr, Q_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr,
):  # fmt: skip
    """The loading warp group: k and v once; then a ring of STAGES tiles of q, do, lse (in base 2) and delta."""
    k_start, batch, kv_head, q_start, num_tiles = tiles_of_program(
        N_QUERIES, N_KEYS, NUM_KV_HEADS, 2 * KEYS, Q_TILE_SIZE, IS_CAUSAL
    )
    for c in gl.static_range(2):
        keys = [batch, kv_head, k_start + c * KEYS, 0]
        mbarrier.expect(kv_full.index(c), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
        async_load(k_desc, keys, kv_full.index(c), k_tiles.index(c))
        async_load(v_desc, keys, kv_full.index(c), v_tiles.index(c))
    columns = gl.arange(0, Q_TILE_SIZE, layout=gl.BlockedLayout([1], [32], [4], [0]))
    for i in range(0, num_tiles * HEADS_PER_KV_HEAD):
        slot = i % STAGES
        tile, head = visited(i, num_tiles, kv_head, HEADS_PER_KV_HEAD)
        row = q_start + tile * Q_TILE_SIZE
        row_ptr = (batch * (NUM_KV_HEADS * HEADS_PER_KV_HEAD) + head).to(gl.int64) * N_QUERIES
        lse = gl.load(L_ptr + row_ptr + row + columns, mask=row + columns < N_QUERIES, other=0.0)
        delta = gl.load(Delta_ptr + row_ptr + row + columns, mask=row + columns < N_QUERIES, other=0.0)
        mbarrier.wait(empty.index(slot), (i // STAGES) % 2 ^ 1)
        mbarrier.expect(full.index(slot), q_desc.block_type.nbytes + do_desc.block_type.nbytes)
        async_load(q_desc, [batch, head, row, 0], full.index(slot), q_tiles.index(slot))
        async_load(do_desc, [batch, head, row, 0], full.index(slot), do_tiles.index(slot))
        lse_tiles.index(slot).store(lse * LOG2_E)
        delta_tiles.index(slot).store(delta)
        mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def masked(
    s, keys, tile, q_start, full_from, num_tiles, N_QUERIES, N_KEYS,
    Q_TILE_SIZE: gl.constexpr, IS_CAUSAL: gl.constexpr, EVEN_QUERIES: gl.constexpr, EVEN_KEYS: gl.constexpr,
    row_layout: gl.constexpr,
):  # fmt: skip
    """-inf for keys beyond the end, for queries beyond the end, and above the diagonal, each where there can be any.

    Edges are branches in one loop: of two, one for the diagonal and one for the rest, ptxas serializes wgmma (C7511).
    """
    if not EVEN_KEYS:
        s = gl.where((keys < N_KEYS)[:, None], s, float("-inf"))
    if not EVEN_QUERIES:  # noqa: SIM102
        # They are zeros, but 0 times an infinite k would be NaN.
        if tile == num_tiles - 1:
            rows = q_start + tile * Q_TILE_SIZE + gl.arange(0, Q_TILE_SIZE, layout=row_layout)
            s = gl.where((rows < N_QUERIES)[None, :], s, float("-inf"))
    if IS_CAUSAL:  # noqa: SIM102
        if tile < full_from:
            rows = q_start + tile * Q_TILE_SIZE + gl.arange(0, Q_TILE_SIZE, layout=row_layout)
            s = gl.where(rows[None, :] >= keys[:, None], s, float("-inf"))
    return s


@gluon.jit
def store_dkdv(dk_desc, dv_desc, dk, dv, v, v_tile, scale, coord):
    """By way of the tile of v, which has done its part; that of k is dq's until the last consumer ends."""
    v.store(dv.to(dv_desc.dtype))
    fence_async_shared()
    async_store(dv_desc, coord, v_tile)
    tma.store_wait(0)
    v.store((dk * scale).to(dk_desc.dtype))
    fence_async_shared()
    async_store(dk_desc, coord, v_tile)
    tma.store_wait(0)
