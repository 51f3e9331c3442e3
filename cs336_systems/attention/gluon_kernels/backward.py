"""FlashAttention-2's backward, Algorithm 2 of Dao (2023), in five products a tile: code that all head dimensions share.

Consumers hold 64 rows of dk and dv each in registers and visit the tiles of queries. dq is summed over programs in
memory, in float32 and in the order in which programs arrive, so the last bits of two runs differ. So are dk and dv
where several programs share the visits of a key tile. Scores are transposed, keys by queries: p and ds then are in
the layout of a wgmma's left operand, for dv and dk.

`scale` is softmax_scale; `scale_log2` is softmax_scale * log2(e), for the scores, which are in base 2 as in the
forward.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from cs336_systems.attention import constants
from cs336_systems.attention.gluon_kernels.columns import columns_of, start_of, width_of
from cs336_systems.attention.gluon_kernels.order import in_order
from cs336_systems.attention.gluon_kernels.scaffold import (
    ROWS,
    Ring,
    async_add,
    async_load,
    async_store,
    barriers,
    reinterpret,
    ring_barriers,
    tiles_like,
)

LOG2_E = gl.constexpr(constants.LOG2_E)
KEYS = ROWS  # of a consumer


class Memory(NamedTuple):
    """Shared memory of a 16-bit backward: tiles of k and v for two consumers, rings of q and do, and of ds."""

    k_tiles: Any
    v_tiles: Any
    kv_full: Any
    q: Any
    do_tiles: Any
    lse: Any
    delta: Any
    ds: Any
    dq_tiles: Any


class Config(NamedTuple):
    """Compile-time choices of a backward."""

    HEAD_DIM: Any
    D: Any
    Q_TILE_SIZE: Any
    STAGES: Any
    DS_STAGES: Any
    IS_CAUSAL: Any
    EVEN_QUERIES: Any
    EVEN_KEYS: Any
    HEADS: Any
    """Query heads of a key head."""
    SPLITS: Any
    """Programs that share the visits of a key tile. With more than one, dk and dv are added in memory as dq is."""


class Task(NamedTuple):
    """Arguments of a consumer of a 16-bit backward."""

    dq: Any
    dk: Any
    dv: Any
    memory: Any
    sizes: Any
    scale: Any
    scale_log2: Any
    config: Any


@gluon.jit
def allocate(
    q_desc, k_desc, v_desc, do_desc, dq_desc, DQ_TILES: gl.constexpr, DS_BARRIERS: gl.constexpr,
    DS_ARRIVALS: gl.constexpr, Q_TILE_SIZE: gl.constexpr, STAGES: gl.constexpr, DS_STAGES: gl.constexpr,
):  # fmt: skip
    """Allocate the shared memory of a 16-bit backward and initialize its barriers."""
    dtype: gl.constexpr = q_desc.dtype
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, Q_TILE_SIZE], dtype)
    q_tiles = tiles_like(q_desc, STAGES)
    do_tiles = tiles_like(do_desc, STAGES)
    k_tiles = tiles_like(k_desc, 2)
    v_tiles = tiles_like(v_desc, 2)
    ds_tiles = gl.allocate_shared_memory(dtype, [DS_STAGES * 2, KEYS, Q_TILE_SIZE], ds_layout)
    dq_tiles = tiles_like(dq_desc, DQ_TILES)
    lse_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, Q_TILE_SIZE], vector)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, Q_TILE_SIZE], vector)
    kv_full = barriers(2)
    for c in gl.static_range(2):
        mbarrier.init(kv_full.index(c), count=1)
    # A slot is full after the copies of q and do, and after the loading warps have stored lse and delta.
    full, empty = ring_barriers(STAGES, 2, 2)
    ds_full, ds_empty = ring_barriers(DS_BARRIERS, DS_ARRIVALS, DS_ARRIVALS)
    fence_async_shared()
    return Memory(
        k_tiles, v_tiles, kv_full, Ring(q_tiles, full, empty), do_tiles, lse_tiles, delta_tiles,
        Ring(ds_tiles, ds_full, ds_empty), dq_tiles,
    )  # fmt: skip


class Share(NamedTuple):
    """Work of a program: the keys that it holds, and the tiles of queries that it visits."""

    k_start: Any
    batch: Any
    kv_head: Any
    q_start: Any
    """First query that sees any of the keys, rounded down to a tile."""
    num_tiles: Any
    """Tiles of queries of a head, from q_start on."""
    part: Any
    """The program's number among the SPLITS that hold these keys."""
    visits: Any


@gluon.jit
def share_of_program(sizes, K_TILE_SIZE: gl.constexpr, config):
    """Return what this program does. The first key tile of a causal head is the heaviest.

    Of the visits of a key tile, its first tile of queries in all HEADS, its second in all, and so on, a program makes
    every one in SPLITS. So a program whose SPLITS divide HEADS visits some heads whole.
    """
    tile, batch_head = in_order(gl.program_id(0), gl.cdiv(sizes.keys, K_TILE_SIZE), sizes)
    k_start = tile * K_TILE_SIZE
    q_start = k_start * 0
    if config.IS_CAUSAL:
        q_start = k_start // config.Q_TILE_SIZE * config.Q_TILE_SIZE
    num_tiles = gl.maximum(gl.cdiv(sizes.queries - q_start, config.Q_TILE_SIZE), 0)
    group = batch_head % sizes.heads
    part = group % config.SPLITS
    visits = gl.cdiv(num_tiles * config.HEADS - part, config.SPLITS)
    return Share(k_start, batch_head // sizes.heads, group // config.SPLITS, q_start, num_tiles, part, visits)


@gluon.jit
def visited(i, share, config):
    """Return tile and query head of a program's visit i."""
    if config.HEADS == 1 and config.SPLITS == 1:
        return i, share.kv_head
    visit = share.part + i * config.SPLITS
    return visit // config.HEADS, share.kv_head * config.HEADS + visit % config.HEADS


@gluon.jit
def load_tiles(q_desc, k_desc, v_desc, do_desc, L_ptr, Delta_ptr, memory, sizes, config):
    """Load k and v once, then q, do, lse (in base 2) and delta through a ring."""
    share = share_of_program(sizes, 2 * KEYS, config)
    for c in gl.static_range(2):
        keys = [share.batch, share.kv_head, share.k_start + c * KEYS, 0]
        mbarrier.expect(memory.kv_full.index(c), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
        async_load(k_desc, keys, memory.kv_full.index(c), memory.k_tiles.index(c))
        async_load(v_desc, keys, memory.kv_full.index(c), memory.v_tiles.index(c))
    ring = memory.q
    columns = gl.arange(0, config.Q_TILE_SIZE, layout=gl.BlockedLayout([1], [32], [4], [0]))
    for i in range(0, share.visits):
        slot = i % config.STAGES
        tile, head = visited(i, share, config)
        row = share.q_start + tile * config.Q_TILE_SIZE
        lse, delta = load_vectors(L_ptr, Delta_ptr, share.batch, head, row, columns, sizes, config)
        mbarrier.wait(ring.empty.index(slot), (i // config.STAGES) % 2 ^ 1)
        mbarrier.expect(ring.full.index(slot), q_desc.block_type.nbytes + do_desc.block_type.nbytes)
        async_load(q_desc, [share.batch, head, row, 0], ring.full.index(slot), ring.tiles.index(slot))
        async_load(do_desc, [share.batch, head, row, 0], ring.full.index(slot), memory.do_tiles.index(slot))
        memory.lse.index(slot).store(lse * LOG2_E)
        memory.delta.index(slot).store(delta)
        mbarrier.arrive(ring.full.index(slot), count=1)


@gluon.jit
def load_vectors(L_ptr, Delta_ptr, batch, head, row, columns, sizes, config):
    """Load lse and delta of a tile of queries, zeros beyond the end."""
    row_ptr = (batch * (sizes.heads // config.SPLITS * config.HEADS) + head).to(gl.int64) * sizes.queries
    lse = gl.load(L_ptr + row_ptr + row + columns, mask=row + columns < sizes.queries, other=0.0)
    delta = gl.load(Delta_ptr + row_ptr + row + columns, mask=row + columns < sizes.queries, other=0.0)
    return lse, delta


@gluon.jit
def masked(s, keys, tile, share, full_from, sizes, config, row_layout: gl.constexpr):
    """Set scores to -inf for keys beyond the end, for queries beyond the end, and above the diagonal.

    Edges are branches in one loop: with a loop for the diagonal and one for the rest, ptxas serializes wgmma (C7511).
    """
    if not config.EVEN_KEYS:
        s = gl.where((keys < sizes.keys)[:, None], s, float("-inf"))
    if not config.EVEN_QUERIES:  # noqa: SIM102
        # Queries beyond the end are zeros, but 0 times an infinite k would be NaN.
        if tile == share.num_tiles - 1:
            rows = share.q_start + tile * config.Q_TILE_SIZE + gl.arange(0, config.Q_TILE_SIZE, layout=row_layout)
            s = gl.where((rows < sizes.queries)[None, :], s, float("-inf"))
    if config.IS_CAUSAL:  # noqa: SIM102
        if tile < full_from:
            rows = share.q_start + tile * config.Q_TILE_SIZE + gl.arange(0, config.Q_TILE_SIZE, layout=row_layout)
            s = gl.where(rows[None, :] >= keys[:, None], s, float("-inf"))
    return s


@gluon.jit
def store_dkdv(task, dk, dv, parts: gl.constexpr, tiles, share, CONSUMER: gl.constexpr):
    """Store dk and dv, in parts of columns; where programs share their keys, add them in float32 and without `scale`.

    They pass through one or two `tiles` of shared memory, each 64 x D of 16 bits, which are not read again: that of v
    (k is read for dq until all warp groups are done) and perhaps one of dq.
    """
    coord = [share.batch, share.kv_head, share.k_start + CONSUMER * KEYS, 0]
    if task.config.SPLITS == 1:
        async_store(task.dv, coord, written(task.dv, dv, 1.0, parts, tiles[0]))
        tma.store_wait(len(tiles) - 1)
        async_store(task.dk, coord, written(task.dk, dk, task.scale, parts, tiles[len(tiles) - 1]))
    else:
        add_halves(task.dv, dv, parts, tiles, coord)
        add_halves(task.dk, dk, parts, tiles, coord)
    tma.store_wait(0)


@gluon.jit
def add_halves(desc, x, parts: gl.constexpr, tiles, coord):
    """Add parts of columns in memory. A float32 tile in the place of 64 x D of 16 bits has half as many columns."""
    halves: gl.constexpr = halves_of(parts)
    for i in gl.static_range(2):
        tma.store_wait(len(tiles) - 1)
        tile = written(desc, (half_of(x, parts, i),), 1.0, (width_of(halves, i),), tiles[i % len(tiles)])
        async_add(desc, [coord[0], coord[1], coord[2], i * desc.block_type.shape[3]], tile)


@gluon.constexpr_function
def halves_of(parts):
    """Return widths of two parts."""
    return parts if len(parts) == 2 else (parts[0] // 2, parts[0] // 2)


@gluon.jit
def half_of(x, parts: gl.constexpr, i: gl.constexpr):
    """Return one of two parts of columns, or of the halves of one part."""
    if len(parts) == 2:
        return x[i]
    else:  # noqa: RET505, Triton compiles what follows a return
        return gl.split(x[0].reshape((KEYS, 2, width_of(parts, 0) // 2)).permute((0, 2, 1)))[i]


@gluon.jit
def written(desc, x, factor, parts: gl.constexpr, tile):
    """Write factor * x, in parts of columns, to a tile of shared memory, and return it as a tile of `desc`."""
    tile = reinterpret(tile, desc.dtype, desc.block_type.shape, desc.layout)
    columns = tile.reshape((KEYS, desc.block_type.shape[3]))
    for i in gl.static_range(len(parts)):
        columns_of(columns, start_of(parts, i), width_of(parts, i)).store((x[i] * factor).to(desc.dtype))
    fence_async_shared()
    return tile
