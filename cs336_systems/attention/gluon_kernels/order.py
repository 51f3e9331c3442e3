"""The order in which programs take the tiles of all heads."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def in_order(position, num_tiles, sizes):
    """Return tile and head, over the batch, at a position: all first tiles of some heads, all second ones, and so on.

    After the last tiles come those of the next `heads_at_once`. So programs that are given tiles in this order, the
    heaviest first, end at about the same time.
    """
    first_head = position // (num_tiles * sizes.heads_at_once) * sizes.heads_at_once
    heads = gl.minimum(sizes.heads_at_once, sizes.all_heads - first_head)
    rank = position - first_head * num_tiles
    return rank // heads, first_head + rank % heads


@gluon.jit
def turns_of(sizes, Q_TILE_SIZE: gl.constexpr):
    """Return how many tiles this program takes."""
    num_tiles = gl.cdiv(sizes.queries, Q_TILE_SIZE) * sizes.all_heads
    turns = num_tiles // gl.num_programs(0)
    place = gl.program_id(0)
    if turns % 2 == 1:
        place = gl.num_programs(0) - 1 - place
    return turns + (place < num_tiles % gl.num_programs(0)).to(gl.int32)


@gluon.jit
def tile_at(turn, sizes, Q_TILE_SIZE: gl.constexpr, IS_CAUSAL: gl.constexpr, PAIRED: gl.constexpr = False):
    """Return first query, batch and head of the tile that this program takes in a turn.

    The heaviest tiles come first, the last ones of their heads if causal. Every other turn goes through the programs
    backward, so that each gets about the same work. PAIRED is for programs of one tile, two on a multiprocessor: the
    GPU gives one to each, then a second one in the same order. So the first half takes the heavier tiles backward.
    """
    position = turn * gl.num_programs(0) + gl.program_id(0)
    if turn % 2 == 1:
        position = (turn + 1) * gl.num_programs(0) - 1 - gl.program_id(0)
    if PAIRED:
        half = gl.num_programs(0) // 2
        if position < half:
            position = half - 1 - position
    num_tiles = gl.cdiv(sizes.queries, Q_TILE_SIZE)
    tile, batch_head = in_order(position, num_tiles, sizes)
    if IS_CAUSAL:
        tile = num_tiles - 1 - tile
    return tile * Q_TILE_SIZE, batch_head // sizes.heads, batch_head % sizes.heads
