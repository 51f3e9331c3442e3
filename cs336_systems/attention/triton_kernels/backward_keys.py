"""The backward's pass over keys: dk and dv of a tile of them, from all queries that see it."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_kernels.dropout import keep_tile
from cs336_systems.attention.triton_kernels.tiles import LOG2_E, delta_of_rows, load_rows


@triton.jit
def dk_dv_of_tile(
    Q_ptr,
    K_ptr,
    V_ptr,
    O_ptr,
    dO_ptr,
    L_ptr,
    Delta_ptr,
    dK_ptr,
    dV_ptr,
    Seed_ptr,
    stride_qh,
    stride_qq,
    stride_kk,
    stride_vk,
    stride_oh,
    stride_oq,
    stride_doh,
    stride_doq,
    stride_dkk,
    stride_dvk,
    N_QUERIES,
    N_KEYS,
    scale,
    scale_log2,
    drop_below,
    keep_probability,
    first_q_head,
    k_start,
    HEADS_PER_KV_HEAD: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    ONE_LOOP: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """dk and dv of K_TILE_SIZE keys from k_start on. Delta_ptr is None where delta is to be taken from O_ptr.

    Pointers are at the head of k and v, and at `first_q_head`, counted over the batch, of those that it serves.

    Scores are held transposed, keys by queries, so that p and ds are already what dv and dk multiply.
    """
    L_ptr += first_q_head * N_QUERIES
    if Delta_ptr is not None:
        Delta_ptr += first_q_head * N_QUERIES
    keys = k_start + tl.arange(0, K_TILE_SIZE)
    rows = tl.arange(0, Q_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    key_offsets = keys.to(tl.int64)[:, None]
    key_mask = (keys < N_KEYS)[:, None] & (dims < D)[None, :]
    k = tl.load(K_ptr + key_offsets * stride_kk + dims[None, :], mask=key_mask, other=0.0)
    v = tl.load(V_ptr + key_offsets * stride_vk + dims[None, :], mask=key_mask, other=0.0)
    dk = tl.zeros((K_TILE_SIZE, D_PADDED), dtype=tl.float32)
    dv = tl.zeros((K_TILE_SIZE, D_PADDED), dtype=tl.float32)

    q_offsets = rows[:, None] * stride_qq + dims[None, :]
    o_offsets = rows[:, None] * stride_oq + dims[None, :]
    do_offsets = rows[:, None] * stride_doq + dims[None, :]

    # A causal key tile begins at its diagonal, since no row before it sees these keys. Full tiles first, as in
    # the forward: the other order serializes the wgmma of both loops. ONE_LOOP masks them all, in half the code.
    q_first = k_start // Q_TILE_SIZE * Q_TILE_SIZE
    q_full = tl.cdiv(k_start + K_TILE_SIZE, Q_TILE_SIZE) * Q_TILE_SIZE if IS_CAUSAL else k_start * 0
    q_masked_end = N_QUERIES if ONE_LOOP else tl.minimum(q_full, N_QUERIES)
    for group in tl.range(0, HEADS_PER_KV_HEAD, num_stages=1):
        q_head = first_q_head + group
        if not (ONE_LOOP and IS_CAUSAL):
            dk, dv = visit_queries(
                dk, dv, Q_ptr, O_ptr, dO_ptr, q_offsets, o_offsets, do_offsets, L_ptr, Delta_ptr, k, v, keys, rows,
                dims, q_full, N_QUERIES, N_QUERIES, N_KEYS, stride_qq, stride_oq, stride_doq,
                scale_log2, Seed_ptr, drop_below, keep_probability, q_head, k_start,
                D, Q_TILE_SIZE, False, EVEN_QUERIES, EVEN_KEYS, ONE_LOOP, INPUT_PRECISION,
            )  # fmt: skip
        if IS_CAUSAL:
            dk, dv = visit_queries(
                dk, dv, Q_ptr, O_ptr, dO_ptr, q_offsets, o_offsets, do_offsets, L_ptr, Delta_ptr, k, v, keys, rows,
                dims, q_first, q_masked_end, N_QUERIES, N_KEYS, stride_qq, stride_oq, stride_doq,
                scale_log2, Seed_ptr, drop_below, keep_probability, q_head, k_start,
                D, Q_TILE_SIZE, True, EVEN_QUERIES, EVEN_KEYS, ONE_LOOP, INPUT_PRECISION,
            )  # fmt: skip
        Q_ptr += stride_qh
        dO_ptr += stride_doh
        L_ptr += N_QUERIES
        if Delta_ptr is None:
            O_ptr += stride_oh
        else:
            Delta_ptr += N_QUERIES

    if Seed_ptr is not None:
        dk, dv = dk / tl.cast(keep_probability, tl.float32), dv / tl.cast(keep_probability, tl.float32)
    dk = (dk * scale).to(dK_ptr.dtype.element_ty)
    dv = dv.to(dV_ptr.dtype.element_ty)
    tl.store(dK_ptr + key_offsets * stride_dkk + dims[None, :], dk, mask=key_mask)
    tl.store(dV_ptr + key_offsets * stride_dvk + dims[None, :], dv, mask=key_mask)


@triton.jit
def visit_queries(
    dk,
    dv,
    Q_ptr,
    O_ptr,
    dO_ptr,
    q_offsets,
    o_offsets,
    do_offsets,
    L_ptr,
    Delta_ptr,
    k,
    v,
    keys,
    rows,
    dims,
    q_begin,
    q_end,
    N_QUERIES,
    N_KEYS,
    stride_qq,
    stride_oq,
    stride_doq,
    scale_log2,
    Seed_ptr,
    drop_below,
    keep_probability,
    q_head,
    k_start,
    D: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    MASK_CAUSAL: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    ONE_LOOP: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """The query tiles from q_begin to q_end of one key tile."""
    Q_ptr += q_begin.to(tl.int64) * stride_qq
    dO_ptr += q_begin.to(tl.int64) * stride_doq
    if Delta_ptr is None:
        O_ptr += q_begin.to(tl.int64) * stride_oq
    # Diagonal tiles are one or two, and two pipelined loops in a kernel make ptxas serialize the wgmma of both.
    num_stages: tl.constexpr = 1 if MASK_CAUSAL and not ONE_LOOP else None
    if Seed_ptr is not None:
        seed = tl.load(Seed_ptr)
    for q_start in tl.range(q_begin, q_end, Q_TILE_SIZE, num_stages=num_stages):
        # Rows beyond the end load as zeros, and zeros of q and do contribute nothing: they need no mask. (But against a
        # key that holds an infinity: 0 * inf makes its dk and dv NaN. A mask costs d = 128, causal, 90 spills.)
        in_range = q_start + rows < N_QUERIES
        q = load_rows(Q_ptr + q_offsets, in_range, dims, D, not EVEN_QUERIES)
        do = load_rows(dO_ptr + do_offsets, in_range, dims, D, not EVEN_QUERIES)
        lse = tl.load(L_ptr + q_start + rows, mask=in_range, other=0.0) * LOG2_E
        if Delta_ptr is None:
            delta = delta_of_rows(load_rows(O_ptr + o_offsets, in_range, dims, D, not EVEN_QUERIES), do)
            O_ptr += Q_TILE_SIZE * stride_oq
        else:
            delta = tl.load(Delta_ptr + q_start + rows, mask=in_range, other=0.0)

        # Masked before exp2, which may be infinite at a score that no softmax has seen.
        scores = tl.dot(k, tl.trans(q), input_precision=INPUT_PRECISION) * scale_log2
        if not EVEN_KEYS:
            scores = tl.where((keys < N_KEYS)[:, None], scores, float("-inf"))
        if MASK_CAUSAL:
            scores = tl.where((q_start + rows)[None, :] >= keys[:, None], scores, float("-inf"))
        p = tl.exp2(scores - lse[None, :])
        kept_p = p
        if Seed_ptr is not None:
            keep = keep_tile(seed, drop_below, q_head, q_start, k_start, Q_TILE_SIZE, k.shape[0], True)
            kept_p = tl.where(keep, p, 0.0)
        dv = tl.dot(kept_p.to(do.dtype), do, dv, input_precision=INPUT_PRECISION)
        dp = tl.dot(v, tl.trans(do), input_precision=INPUT_PRECISION)
        if Seed_ptr is not None:
            dp = tl.where(keep, dp, 0.0)
            delta *= tl.cast(keep_probability, tl.float32)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=INPUT_PRECISION)
        Q_ptr += Q_TILE_SIZE * stride_qq
        dO_ptr += Q_TILE_SIZE * stride_doq
    return dk, dv
