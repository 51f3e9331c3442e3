"""float32 on tensor cores, for the kernels in Gluon: two or three bfloat16 pieces of each operand, and their products.

The first piece of x is x rounded to bfloat16, the second what that leaves out, the third what both leave out: 16 bits
in two, 24 in three. Of the four or nine products of pieces the one or three smallest are beyond those bits. q, k, v and
do are split in memory before the kernels, (batch, heads, seq_len, PIECES * d): wgmma then takes each piece from where
the copy engine put it, either way round, which of float32 it cannot (TF32 has one way only). p and ds are split in
registers. A tile's pieces are a tuple.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from cs336_systems.attention.triton_kernels.hopper import async_load, matrix, mma, operand


@gluon.jit
def pieces_of(x, PIECES: gl.constexpr):
    """bfloat16 tiles whose sum is x, to 16 or 24 bits; of what is not finite the first says all."""
    first = x.to(gl.bfloat16)
    rest = finite(x - first.to(gl.float32))
    second = rest.to(gl.bfloat16)
    pieces = (first, second)
    if PIECES == 3:
        pieces = pieces + ((rest - second.to(gl.float32)).to(gl.bfloat16),)
    return pieces


@gluon.jit
def operands(pieces, COLUMNS: gl.constexpr):
    """Where a wgmma of that many columns takes its left operand: registers."""
    layout: gl.constexpr = operand(COLUMNS)
    return [gl.convert_layout(piece, layout) for piece in pieces]


@gluon.jit
def finite(x):
    """x, or 0 where it is NaN or infinite."""
    return gl.where((x > float("-inf")) & (x < float("inf")), x, 0.0)


@gluon.jit
def load_pieces(desc, batch, head, row, full, tiles, slot, PIECES: gl.constexpr):
    """A tile's pieces to a slot, by the copy engine."""
    mbarrier.expect(full, PIECES * desc.block_type.nbytes)
    for piece in gl.static_range(PIECES):
        coord = [batch, head, row, piece * desc.block_type.shape[3]]
        async_load(desc, coord, full, tiles.index(slot * PIECES + piece))


@gluon.jit
def matrices(tiles, slot, COLUMNS: gl.constexpr, PIECES: gl.constexpr):
    """What `load_pieces` left in a slot: 64 x COLUMNS each."""
    first = slot * PIECES
    pieces = (matrix(tiles, first, 64, COLUMNS), matrix(tiles, first + 1, 64, COLUMNS))
    if PIECES == 3:
        pieces = pieces + (matrix(tiles, first + 2, 64, COLUMNS),)
    return pieces


@gluon.jit
def turned(x):
    """The transposes of matrices in shared memory."""
    return [piece.permute((1, 0)) for piece in x]


@gluon.jit
def columns_of(x, START: gl.constexpr, COLUMNS: gl.constexpr):
    """Some columns of matrices in shared memory."""
    return [piece.slice(START, COLUMNS, 1) for piece in x]


@gluon.jit
def small_products(a, b, acc):
    """All products of pieces that are taken but the largest, smallest first; under way when it returns."""
    if len(a) == 3:
        acc = warpgroup_mma(a[2], b[0], acc, use_acc=False, is_async=True)
        acc = warpgroup_mma(a[0], b[2], acc, is_async=True)
        acc = warpgroup_mma(a[1], b[1], acc, is_async=True)
    acc = warpgroup_mma(a[1], b[0], acc, use_acc=len(a) == 3, is_async=True)
    return warpgroup_mma(a[0], b[1], acc, is_async=True)


@gluon.jit
def product(a, b, COLUMNS: gl.constexpr):
    """a @ b, 64 x COLUMNS; under way when it returns.

    A sum of many tiles adds it to what it has, and not the tensor core, which cuts off where an addition rounds.
    """
    acc = small_products(a, b, gl.zeros([64, COLUMNS], gl.float32, layout=mma(COLUMNS)))
    return warpgroup_mma(a[0], b[0], acc, is_async=True)


@gluon.jit
def scores_of(a, b, COLUMNS: gl.constexpr):
    """a @ b, 64 x COLUMNS, infinite where the large pieces make it so: the others times an infinity say nothing."""
    zeros = gl.zeros([64, COLUMNS], gl.float32, layout=mma(COLUMNS))
    small = small_products(a, b, zeros)
    large = warpgroup_mma(a[0], b[0], zeros, use_acc=False, is_async=True)
    small, large = warpgroup_mma_wait(0, deps=(small, large))
    return large + finite(small)


@gluon.jit(do_not_specialize=["NUM_HEADS"])
def split_kernel(
    X_ptr, Pieces_ptr, stride_xb, stride_xh, stride_xn, NUM_HEADS, SEQ_LEN,
    D: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """ROWS rows of one head of X, float32, to Pieces, (batch, heads, SEQ_LEN, PIECES, D)."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 * 4 // D, D // 4], [4, 1], [1, 0])
    num_tiles = gl.cdiv(SEQ_LEN, ROWS)
    tile = gl.program_id(0) % num_tiles
    batch_head = (gl.program_id(0) // num_tiles).to(gl.int64)
    rows = tile * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    exist = (rows < SEQ_LEN)[:, None] & (dims >= 0)[None, :]
    X_ptr += batch_head // NUM_HEADS * stride_xb + batch_head % NUM_HEADS * stride_xh
    Pieces_ptr += batch_head * SEQ_LEN * (PIECES * D)
    x = gl.load(X_ptr + (rows.to(gl.int64)[:, None] * stride_xn + dims[None, :]), mask=exist, other=0.0)
    pieces = pieces_of(x, PIECES)
    offsets = rows.to(gl.int64)[:, None] * (PIECES * D) + dims[None, :]
    for piece in gl.static_range(PIECES):
        gl.store(Pieces_ptr + (offsets + piece * D), pieces[piece], mask=exist)
