"""Head vectors of any width: products that leave out the zeros beyond HEAD_DIM, and sums in parts of columns.

Shapes in Gluon are powers of two, and the tiles of head vectors have 64 or 128 columns. But a wgmma multiplies 16
columns of depth at a time, and any part of a tile's columns. A sum of 80 columns is a tuple of two tensors, 64 and 16
columns wide.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from cs336_systems.attention.gluon_kernels.scaffold import ROWS, mma, operand


@gluon.constexpr_function
def wgmma_columns(head_dim):
    """Return head_dim rounded up to what a product of that depth takes."""
    return -(-head_dim // 16) * 16


@gluon.constexpr_function
def parts_of(columns):
    """Return widths of parts of a matrix, powers of two as shapes are in Gluon, whose sum is `columns`."""
    return tuple(width for width in (128, 64, 32, 16) if columns & width)


@gluon.constexpr_function
def result_parts(head_dim, d):
    """Return widths of parts of a sum of products as wide as head vectors: two where fewer columns take less time."""
    columns = wgmma_columns(head_dim)
    return parts_of(columns if columns in (80, 96) else d)


@gluon.constexpr_function
def width_of(parts, i):
    """Return the columns of a part."""
    return parts[i]


@gluon.constexpr_function
def start_of(parts, i):
    """Return the first column of a part."""
    return sum(parts[:i])


@gluon.jit
def products_over(a, b, HEAD_DIM: gl.constexpr, COLUMNS: gl.constexpr):
    """Issue a @ b.T, 64 x COLUMNS, of head vectors in shared memory, without the zeros beyond HEAD_DIM."""
    parts: gl.constexpr = parts_of(wgmma_columns(HEAD_DIM))
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, layout=mma(COLUMNS))
    for i in gl.static_range(len(parts)):
        left = columns_of(a, start_of(parts, i), width_of(parts, i))
        right = columns_of(b, start_of(parts, i), width_of(parts, i))
        acc = warpgroup_mma(left, right.permute((1, 0)), acc, use_acc=i > 0, is_async=True)
    return acc


@gluon.jit
def columns_of(x, START: gl.constexpr, COLUMNS: gl.constexpr):
    """Return columns of a matrix in shared memory."""
    if x.shape[1] != COLUMNS:
        x = x.slice(START, COLUMNS, 1)
    return x


@gluon.jit
def zeros_of(parts: gl.constexpr):
    """Return zeros of 64 rows in parts of columns."""
    acc = ()
    for i in gl.static_range(len(parts)):
        acc = acc + (gl.zeros([ROWS, width_of(parts, i)], gl.float32, layout=mma(width_of(parts, i))),)
    return acc


@gluon.jit
def add_products(a, b, acc, parts: gl.constexpr):
    """Issue acc + a @ b, where a is in registers, b in shared memory, and acc in parts of columns."""
    out = ()
    for i in gl.static_range(len(parts)):
        left = gl.convert_layout(a, operand(width_of(parts, i)))
        right = columns_of(b, start_of(parts, i), width_of(parts, i))
        out = out + (warpgroup_mma(left, right, acc[i], is_async=True),)
    return out


@gluon.jit
def wait_for(acc):
    """Wait for all products, of which acc has some in parts of columns."""
    acc = warpgroup_mma_wait(0, deps=acc)
    if not isinstance(acc, gl.tuple):
        acc = (acc,)
    return acc


@gluon.jit
def scaled_rows(acc, factors, parts: gl.constexpr):
    """Multiply the rows of parts of columns."""
    out = ()
    for i in gl.static_range(len(parts)):
        out = out + (acc[i] * gl.convert_layout(factors, gl.SliceLayout(1, mma(width_of(parts, i))))[:, None],)
    return out
