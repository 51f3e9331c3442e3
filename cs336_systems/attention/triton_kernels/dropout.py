"""The mask of `attention.dropout.keep_mask` for one tile of scores, in registers."""

import triton
import triton.language as tl

from cs336_systems.attention.dropout import PHILOX_ROUNDS

N_ROUNDS = tl.constexpr(PHILOX_ROUNDS)


@triton.jit
def keep_tile(
    seed,
    drop_below,
    head,
    q_start,
    k_start,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Return which probabilities stay in the (Q_TILE_SIZE, K_TILE_SIZE) tile, or its transpose, at (q_start, k_start).

    Philox returns four words, used for rows i and i + 8 at columns j and j + 8 of each 16 x 16. Up to compute
    capability 9.0 one thread holds these four in the layout of tl.dot's results, transposed or not, so threads exchange
    nothing (unless a warp holds fewer columns, as in float32's dk and dv at d = 128). At 10.0 the words go through
    shared memory.
    """
    rows = q_start // 2 + tl.arange(0, Q_TILE_SIZE // 2)
    columns = k_start // 2 + tl.arange(0, K_TILE_SIZE // 2)
    w0, w1, w2, w3 = tl.philox(seed, columns[None, :], rows[:, None], head.to(tl.uint32), 0, N_ROUNDS)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # [..., i, j] is word 2 i + j
    words = tl.reshape(words, (Q_TILE_SIZE // 16, 8, K_TILE_SIZE // 16, 8, 2, 2))
    if TRANSPOSED:
        words = tl.reshape(tl.permute(words, (2, 5, 3, 0, 4, 1)), (K_TILE_SIZE, Q_TILE_SIZE))
    else:
        words = tl.reshape(tl.permute(words, (0, 4, 1, 2, 5, 3)), (Q_TILE_SIZE, K_TILE_SIZE))
    return words.to(tl.int32, bitcast=True) >= drop_below
