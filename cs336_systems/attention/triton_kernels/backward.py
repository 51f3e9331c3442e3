"""FlashAttention-2, backward: Algorithm 2 of Dao (2023), as one pass over keys and one over queries.

Two passes compute the scores twice (7 products a tile for 5) and need no atomics: the gradients of two runs are
the same to the bit. `scale` is softmax_scale, for the gradients; `scale_log2` is softmax_scale * log2(e), for the
scores, which are in base 2 as in the forward.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def flash_bwd_dkdv_kernel(
    Q_ptr,
    K_ptr,
    V_ptr,
    dO_ptr,
    L_ptr,
    Delta_ptr,
    dK_ptr,
    dV_ptr,
    stride_qb,
    stride_qh,
    stride_qq,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kk,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vk,
    stride_vd,
    stride_dob,
    stride_doh,
    stride_doq,
    stride_dod,
    stride_dkb,
    stride_dkh,
    stride_dkk,
    stride_dkd,
    stride_dvb,
    stride_dvh,
    stride_dvk,
    stride_dvd,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    scale,
    scale_log2,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """One program computes K_TILE_SIZE rows of dk and dv for one head of one batch element.

    Scores are held transposed, keys by queries, so that p and ds are already what dv and dk multiply.
    """
    k_start = tl.program_id(0) * K_TILE_SIZE
    batch_head = tl.program_id(1).to(tl.int64)
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS

    keys = k_start + tl.arange(0, K_TILE_SIZE)
    rows = tl.arange(0, Q_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    key_offsets = keys.to(tl.int64)[:, None]
    key_mask = (keys < N_KEYS)[:, None] & (dims < D)[None, :]

    K_ptr += batch * stride_kb + head * stride_kh
    V_ptr += batch * stride_vb + head * stride_vh
    dK_ptr += batch * stride_dkb + head * stride_dkh
    dV_ptr += batch * stride_dvb + head * stride_dvh
    Q_ptr += batch * stride_qb + head * stride_qh
    dO_ptr += batch * stride_dob + head * stride_doh
    L_ptr += batch_head * N_QUERIES
    Delta_ptr += batch_head * N_QUERIES
    q_ptrs = Q_ptr + rows[:, None] * stride_qq + dims[None, :] * stride_qd
    do_ptrs = dO_ptr + rows[:, None] * stride_doq + dims[None, :] * stride_dod

    k = tl.load(K_ptr + key_offsets * stride_kk + dims[None, :] * stride_kd, mask=key_mask, other=0.0)
    v = tl.load(V_ptr + key_offsets * stride_vk + dims[None, :] * stride_vd, mask=key_mask, other=0.0)
    dk = tl.zeros((K_TILE_SIZE, D_PADDED), dtype=tl.float32)
    dv = tl.zeros((K_TILE_SIZE, D_PADDED), dtype=tl.float32)

    q_first = 0
    if IS_CAUSAL:  # begin at the diagonal: no row before it sees these keys
        q_first = k_start // Q_TILE_SIZE * Q_TILE_SIZE
        q_ptrs += q_first.to(tl.int64) * stride_qq
        do_ptrs += q_first.to(tl.int64) * stride_doq
    for q_start in range(q_first, N_QUERIES, Q_TILE_SIZE):
        # Rows beyond the end load as zeros, and zeros of q and do contribute nothing: they need no mask.
        in_range = q_start + rows < N_QUERIES
        q = tl.load(q_ptrs, mask=in_range[:, None] & (dims < D)[None, :], other=0.0)
        do = tl.load(do_ptrs, mask=in_range[:, None] & (dims < D)[None, :], other=0.0)
        lse = tl.load(L_ptr + q_start + rows, mask=in_range, other=0.0) * LOG2_E
        delta = tl.load(Delta_ptr + q_start + rows, mask=in_range, other=0.0)

        scores = tl.dot(k, tl.trans(q), input_precision=INPUT_PRECISION) * scale_log2
        visible = (keys < N_KEYS)[:, None]
        if IS_CAUSAL:
            visible = visible & ((q_start + rows)[None, :] >= keys[:, None])
        # Masked before exp, which may be infinite at a score that no softmax has seen.
        p = tl.exp2(tl.where(visible, scores, float("-inf")) - lse[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=INPUT_PRECISION)
        dp = tl.dot(v, tl.trans(do), input_precision=INPUT_PRECISION)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=INPUT_PRECISION)
        q_ptrs += Q_TILE_SIZE * stride_qq
        do_ptrs += Q_TILE_SIZE * stride_doq

    dk = (dk * scale).to(dK_ptr.dtype.element_ty)
    dv = dv.to(dV_ptr.dtype.element_ty)
    tl.store(dK_ptr + key_offsets * stride_dkk + dims[None, :] * stride_dkd, dk, mask=key_mask)
    tl.store(dV_ptr + key_offsets * stride_dvk + dims[None, :] * stride_dvd, dv, mask=key_mask)


@triton.jit
def flash_bwd_dq_kernel(
    Q_ptr,
    K_ptr,
    V_ptr,
    dO_ptr,
    L_ptr,
    Delta_ptr,
    dQ_ptr,
    stride_qb,
    stride_qh,
    stride_qq,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kk,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vk,
    stride_vd,
    stride_dob,
    stride_doh,
    stride_doq,
    stride_dod,
    stride_dqb,
    stride_dqh,
    stride_dqq,
    stride_dqd,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    scale,
    scale_log2,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """One program computes Q_TILE_SIZE rows of dq for one head of one batch element."""
    q_start = tl.program_id(0) * Q_TILE_SIZE
    batch_head = tl.program_id(1).to(tl.int64)
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS

    rows = q_start + tl.arange(0, Q_TILE_SIZE)
    columns = tl.arange(0, K_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    row_offsets = rows.to(tl.int64)[:, None]
    row_mask = (rows < N_QUERIES)[:, None] & (dims < D)[None, :]

    Q_ptr += batch * stride_qb + head * stride_qh
    dO_ptr += batch * stride_dob + head * stride_doh
    dQ_ptr += batch * stride_dqb + head * stride_dqh
    K_ptr += batch * stride_kb + head * stride_kh
    V_ptr += batch * stride_vb + head * stride_vh
    L_ptr += batch_head * N_QUERIES
    Delta_ptr += batch_head * N_QUERIES
    k_ptrs = K_ptr + columns[:, None] * stride_kk + dims[None, :] * stride_kd
    v_ptrs = V_ptr + columns[:, None] * stride_vk + dims[None, :] * stride_vd

    q = tl.load(Q_ptr + row_offsets * stride_qq + dims[None, :] * stride_qd, mask=row_mask, other=0.0)
    do = tl.load(dO_ptr + row_offsets * stride_doq + dims[None, :] * stride_dod, mask=row_mask, other=0.0)
    lse = tl.load(L_ptr + rows, mask=rows < N_QUERIES, other=0.0) * LOG2_E
    delta = tl.load(Delta_ptr + rows, mask=rows < N_QUERIES, other=0.0)
    dq = tl.zeros((Q_TILE_SIZE, D_PADDED), dtype=tl.float32)

    # A causal tile ends at its diagonal: half of all tiles hold nothing that its rows may see.
    k_end = tl.minimum(N_KEYS, q_start + Q_TILE_SIZE) if IS_CAUSAL else N_KEYS
    for k_start in range(0, k_end, K_TILE_SIZE):
        key_mask = (k_start + columns < N_KEYS)[:, None] & (dims < D)[None, :]
        k = tl.load(k_ptrs, mask=key_mask, other=0.0)
        v = tl.load(v_ptrs, mask=key_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * scale_log2
        visible = (k_start + columns < N_KEYS)[None, :]
        if IS_CAUSAL:
            visible = visible & (rows[:, None] >= (k_start + columns)[None, :])
        # Masked before exp, which may be infinite at a score that no softmax has seen.
        p = tl.exp2(tl.where(visible, scores, float("-inf")) - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision=INPUT_PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=INPUT_PRECISION)
        k_ptrs += K_TILE_SIZE * stride_kk
        v_ptrs += K_TILE_SIZE * stride_vk

    dq = (dq * scale).to(dQ_ptr.dtype.element_ty)
    tl.store(dQ_ptr + row_offsets * stride_dqq + dims[None, :] * stride_dqd, dq, mask=row_mask)
