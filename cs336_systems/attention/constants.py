"""Numbers that launch code and kernels share; kernels wrap them in `constexpr`."""

LOG2_E = 1.4426950408889634
"""exp(x) is exp2(x * LOG2_E). Kernels use exp2, the hardware's function, with the factor folded into the scale."""

LN_2 = 0.6931471805599453

MIN_FLOAT32 = -3.4028234663852886e38
"""Initial row maximum. With -inf, a tile of scores that are all -inf would compute -inf - -inf, which is NaN."""

WGMMA_ROWS = 64
"""Rows of one wgmma, and so of q or k in a consumer warp group."""

DQ_COLUMNS = 64
"""Columns of a tile of dq in the 16-bit Gluon backward: all of 64, half of 128."""
