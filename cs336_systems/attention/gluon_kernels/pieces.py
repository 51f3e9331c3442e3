"""float32 on tensor cores: two or three bfloat16 pieces of each operand, and the products of pieces.

The first piece of x is x rounded to bfloat16, the second the rounding error in bfloat16, the third the error that is
left: two pieces hold 16 bits, three hold 24. Of the four or nine products of pieces, the smallest one or three lie
below those bits and are left out. q, k, v and do are split in memory before the kernels run, as (batch, heads, seq_len,
PIECES * d): wgmma can read a bfloat16 piece from shared memory transposed, which it cannot do for TF32. p and ds are
split in registers. The pieces of a tile are a tuple.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from cs336_systems.attention.gluon_kernels.scaffold import async_load, at_head, matrix, mma, operand, rows_in


@gluon.jit
def pieces_of(x, PIECES: gl.constexpr):
    """Split x into bfloat16 tiles whose sum has 16 or 24 of its bits; only the first holds infinities and NaN."""
    first = x.to(gl.bfloat16)
    rest = finite(x - first.to(gl.float32))
    second = rest.to(gl.bfloat16)
    pieces = (first, second)
    if PIECES == 3:
        pieces = pieces + ((rest - second.to(gl.float32)).to(gl.bfloat16),)
    return pieces


@gluon.jit
def operands(pieces, COLUMNS: gl.constexpr):
    """Convert pieces to the left operands, in registers, of a wgmma with that many columns."""
    layout: gl.constexpr = operand(COLUMNS)
    return [gl.convert_layout(piece, layout) for piece in pieces]


@gluon.jit
def finite(x):
    """Replace NaN and infinities by 0."""
    return gl.where((x > float("-inf")) & (x < float("inf")), x, 0.0)


@gluon.jit
def load_pieces(desc, batch, head, row, full, tiles, slot, PIECES: gl.constexpr):
    """Load a tile's pieces into a slot with the copy engine (TMA)."""
    mbarrier.expect(full, PIECES * desc.block_type.nbytes)
    for piece in gl.static_range(PIECES):
        coord = [batch, head, row, piece * desc.block_type.shape[3]]
        async_load(desc, coord, full, tiles.index(slot * PIECES + piece))


@gluon.jit
def matrices(tiles, slot, COLUMNS: gl.constexpr, PIECES: gl.constexpr):
    """Return the pieces, 64 x COLUMNS each, that `load_pieces` loaded into a slot."""
    first = slot * PIECES
    pieces = (matrix(tiles, first, 64, COLUMNS), matrix(tiles, first + 1, 64, COLUMNS))
    if PIECES == 3:
        pieces = pieces + (matrix(tiles, first + 2, 64, COLUMNS),)
    return pieces


@gluon.jit
def transposed(x):
    """Transpose matrices in shared memory."""
    return [piece.permute((1, 0)) for piece in x]


@gluon.jit
def columns_of(x, START: gl.constexpr, COLUMNS: gl.constexpr):
    """Slice columns of matrices in shared memory."""
    return [piece.slice(START, COLUMNS, 1) for piece in x]


@gluon.jit
def small_products(a, b, acc):
    """Issue the products of pieces but the largest, smallest first, without waiting for them."""
    if len(a) == 3:
        acc = warpgroup_mma(a[2], b[0], acc, use_acc=False, is_async=True)
        acc = warpgroup_mma(a[0], b[2], acc, is_async=True)
        acc = warpgroup_mma(a[1], b[1], acc, is_async=True)
    acc = warpgroup_mma(a[1], b[0], acc, use_acc=len(a) == 3, is_async=True)
    return warpgroup_mma(a[0], b[1], acc, is_async=True)


@gluon.jit
def product(a, b, COLUMNS: gl.constexpr):
    """Issue a @ b, 64 x COLUMNS, without waiting for it.

    Callers that sum many tiles add the result themselves: the tensor core truncates where an addition rounds.
    """
    acc = small_products(a, b, gl.zeros([64, COLUMNS], gl.float32, layout=mma(COLUMNS)))
    return warpgroup_mma(a[0], b[0], acc, is_async=True)


@gluon.jit
def scores_of(a, b, COLUMNS: gl.constexpr):
    """Return a @ b, 64 x COLUMNS; infinities come from the large pieces only, since small ones would make them NaN."""
    zeros = gl.zeros([64, COLUMNS], gl.float32, layout=mma(COLUMNS))
    small = small_products(a, b, zeros)
    large = warpgroup_mma(a[0], b[0], zeros, use_acc=False, is_async=True)
    small, large = warpgroup_mma_wait(0, deps=(small, large))
    return large + finite(small)


@gluon.jit
def split_tile(x, pieces_ptr, tile, NUM_HEADS, SEQ_LEN, HEAD_DIM: gl.constexpr, D: gl.constexpr, ROWS: gl.constexpr,
               PIECES: gl.constexpr):  # fmt: skip
    """Split ROWS rows of one head of x, float32, into pieces, (batch, heads, SEQ_LEN, PIECES, D).

    D is HEAD_DIM or more; what is beyond HEAD_DIM is zero.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 * 4 // D, D // 4], [4, 1], [1, 0])
    num_tiles = gl.cdiv(SEQ_LEN, ROWS)
    batch_head = (tile // num_tiles).to(gl.int64)
    rows = tile % num_tiles * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    dims = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    exist = (rows < SEQ_LEN)[:, None] & (dims >= 0)[None, :]
    filled = (rows < SEQ_LEN)[:, None] & (dims < HEAD_DIM)[None, :]
    x_ptr = at_head(x, batch_head // NUM_HEADS, batch_head % NUM_HEADS)
    pieces_ptr += batch_head * SEQ_LEN * (PIECES * D)
    values = gl.load(x_ptr + (rows.to(gl.int64)[:, None] * x.stride + dims[None, :]), mask=filled, other=0.0)
    pieces = pieces_of(values, PIECES)
    offsets = rows.to(gl.int64)[:, None] * (PIECES * D) + dims[None, :]
    for piece in gl.static_range(PIECES):
        gl.store(pieces_ptr + (offsets + piece * D), pieces[piece], mask=exist)


@gluon.jit(do_not_specialize=["NUM_HEADS", "NUM_KV_HEADS", "BATCH"])
def split_kernel(
    Q_ptr, K_ptr, V_ptr, dO_ptr, QPieces_ptr, KPieces_ptr, VPieces_ptr, dOPieces_ptr,
    stride_qb, stride_qh, stride_qq, stride_kb, stride_kh, stride_kk, stride_vb, stride_vh, stride_vk,
    stride_dob, stride_doh, stride_doq, BATCH, NUM_HEADS, NUM_KV_HEADS, N_QUERIES, N_KEYS,
    HEAD_DIM: gl.constexpr, D: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr, STRIDE_UNIT: gl.constexpr,
):  # fmt: skip
    """Split q, k, v and, unless it is None, do; each program ROWS rows of one of them."""
    q_tiles = gl.cdiv(N_QUERIES, ROWS) * BATCH * NUM_HEADS
    k_tiles = gl.cdiv(N_KEYS, ROWS) * BATCH * NUM_KV_HEADS
    tile = gl.program_id(0)
    if tile < q_tiles:
        rows = rows_in(Q_ptr, stride_qb, stride_qh, stride_qq, STRIDE_UNIT)
        split_tile(rows, QPieces_ptr, tile, NUM_HEADS, N_QUERIES, HEAD_DIM, D, ROWS, PIECES)
    elif tile < q_tiles + k_tiles:
        rows = rows_in(K_ptr, stride_kb, stride_kh, stride_kk, STRIDE_UNIT)
        split_tile(rows, KPieces_ptr, tile - q_tiles, NUM_KV_HEADS, N_KEYS, HEAD_DIM, D, ROWS, PIECES)
    elif tile < q_tiles + 2 * k_tiles:
        rows = rows_in(V_ptr, stride_vb, stride_vh, stride_vk, STRIDE_UNIT)
        split_tile(rows, VPieces_ptr, tile - q_tiles - k_tiles, NUM_KV_HEADS, N_KEYS, HEAD_DIM, D, ROWS, PIECES)
    elif dO_ptr is not None:
        rows = rows_in(dO_ptr, stride_dob, stride_doh, stride_doq, STRIDE_UNIT)
        split_tile(rows, dOPieces_ptr, tile - q_tiles - 2 * k_tiles, NUM_HEADS, N_QUERIES, HEAD_DIM, D, ROWS, PIECES)
