"""The backward's pass over queries: dq of a tile of them, from all keys that they see."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_kernels.dropout import keep_tile
from cs336_systems.attention.triton_kernels.tiles import LOG2_E, delta_of_rows, load_rows


@triton.jit
def dq_of_tile(
    Q_ptr,
    K_ptr,
    V_ptr,
    O_ptr,
    dO_ptr,
    L_ptr,
    Delta_ptr,
    dQ_ptr,
    Seed_ptr,
    stride_qq,
    stride_kk,
    stride_vk,
    stride_oq,
    stride_doq,
    stride_dqq,
    N_QUERIES,
    N_KEYS,
    scale,
    scale_log2,
    drop_below,
    keep_probability,
    q_head,
    q_start,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    ONE_LOOP: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """dq of Q_TILE_SIZE queries from q_start on. Delta_ptr is None where delta is to be taken from O_ptr.

    Pointers are at the head of q, which is `q_head`, counted over the batch, and at that of its k and v.
    """
    L_ptr += q_head * N_QUERIES
    rows = q_start + tl.arange(0, Q_TILE_SIZE)
    columns = tl.arange(0, K_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    in_range = rows < N_QUERIES
    row_offsets = rows.to(tl.int64)[:, None]

    q = load_rows(Q_ptr + row_offsets * stride_qq + dims[None, :], in_range, dims, D, True)
    do = load_rows(dO_ptr + row_offsets * stride_doq + dims[None, :], in_range, dims, D, True)
    lse = tl.load(L_ptr + rows, mask=in_range, other=0.0) * LOG2_E
    if Delta_ptr is None:
        delta = delta_of_rows(load_rows(O_ptr + row_offsets * stride_oq + dims[None, :], in_range, dims, D, True), do)
    else:
        delta = tl.load(Delta_ptr + q_head * N_QUERIES + rows, mask=in_range, other=0.0)
    if Seed_ptr is not None:
        delta *= tl.cast(keep_probability, tl.float32)
    dq = tl.zeros((Q_TILE_SIZE, D_PADDED), dtype=tl.float32)

    k_offsets = columns[:, None] * stride_kk + dims[None, :]
    v_offsets = columns[:, None] * stride_vk + dims[None, :]

    # Full tiles, then edge tiles, as in the forward.
    k_full = N_KEYS // K_TILE_SIZE * K_TILE_SIZE
    k_end = N_KEYS
    if IS_CAUSAL:
        k_full = tl.minimum(k_full, q_start // K_TILE_SIZE * K_TILE_SIZE)
        k_end = tl.minimum(k_end, q_start + Q_TILE_SIZE)
    if ONE_LOOP and (IS_CAUSAL or not EVEN_KEYS):
        k_full = 0
    else:
        dq, K_ptr, V_ptr = visit_keys(
            dq, K_ptr, V_ptr, k_offsets, v_offsets, q, do, lse, delta, rows, columns, dims, 0, k_full, N_KEYS,
            stride_kk, stride_vk, scale_log2, Seed_ptr, drop_below, q_head, q_start,
            D, K_TILE_SIZE, False, True, ONE_LOOP, INPUT_PRECISION,
        )  # fmt: skip
    if IS_CAUSAL or not EVEN_KEYS:
        dq, K_ptr, V_ptr = visit_keys(
            dq, K_ptr, V_ptr, k_offsets, v_offsets, q, do, lse, delta, rows, columns, dims, k_full, k_end, N_KEYS,
            stride_kk, stride_vk, scale_log2, Seed_ptr, drop_below, q_head, q_start,
            D, K_TILE_SIZE, IS_CAUSAL, EVEN_KEYS, ONE_LOOP, INPUT_PRECISION,
        )  # fmt: skip

    if Seed_ptr is not None:
        dq = dq / tl.cast(keep_probability, tl.float32)
    dq = (dq * scale).to(dQ_ptr.dtype.element_ty)
    row_mask = in_range[:, None] & (dims < D)[None, :]
    tl.store(dQ_ptr + row_offsets * stride_dqq + dims[None, :], dq, mask=row_mask)


@triton.jit
def visit_keys(
    dq,
    K_ptr,
    V_ptr,
    k_offsets,
    v_offsets,
    q,
    do,
    lse,
    delta,
    rows,
    columns,
    dims,
    k_begin,
    k_end,
    N_KEYS,
    stride_kk,
    stride_vk,
    scale_log2,
    Seed_ptr,
    drop_below,
    q_head,
    q_start,
    D: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    MASK_CAUSAL: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    ONE_LOOP: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """The key tiles from k_begin to k_end of one query tile; the pointers leave off at k_end."""
    # Edge tiles are one or two, and two pipelined loops in a kernel make ptxas serialize the wgmma of both.
    num_stages: tl.constexpr = 1 if (MASK_CAUSAL or not EVEN_KEYS) and not ONE_LOOP else None
    if Seed_ptr is not None:
        seed = tl.load(Seed_ptr)
    for k_start in tl.range(k_begin, k_end, K_TILE_SIZE, num_stages=num_stages):
        in_range = k_start + columns < N_KEYS
        k = load_rows(K_ptr + k_offsets, in_range, dims, D, not EVEN_KEYS)
        v = load_rows(V_ptr + v_offsets, in_range, dims, D, not EVEN_KEYS)
        # Masked before exp2, which may be infinite at a score that no softmax has seen.
        scores = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * scale_log2
        if not EVEN_KEYS:
            scores = tl.where(in_range[None, :], scores, float("-inf"))
        if MASK_CAUSAL:
            scores = tl.where(rows[:, None] >= (k_start + columns)[None, :], scores, float("-inf"))
        p = tl.exp2(scores - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision=INPUT_PRECISION)
        if Seed_ptr is not None:
            keep = keep_tile(seed, drop_below, q_head, q_start, k_start, q.shape[0], K_TILE_SIZE, False)
            dp = tl.where(keep, dp, 0.0)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=INPUT_PRECISION)
        K_ptr += K_TILE_SIZE * stride_kk
        V_ptr += K_TILE_SIZE * stride_vk
    return dq, K_ptr, V_ptr
