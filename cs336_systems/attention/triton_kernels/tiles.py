"""What the forward and the backward share: loading a tile of rows."""

import triton
import triton.language as tl


@triton.jit
def load_rows(ptrs, in_range, dims, D: tl.constexpr, MASK_ROWS: tl.constexpr):
    """Rows of head vectors, zeros where a row is not `in_range` (if MASK_ROWS) and beyond the head dimension D."""
    if MASK_ROWS:
        rows = tl.load(ptrs, mask=in_range[:, None] & (dims < D)[None, :], other=0.0)
    elif dims.shape[0] != D:
        rows = tl.load(ptrs, mask=(dims < D)[None, :], other=0.0)
    else:
        rows = tl.load(ptrs)
    return rows
