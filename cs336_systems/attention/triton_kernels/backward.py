"""FlashAttention-2, backward: Algorithm 2 of Dao (2023), as one pass over keys and one over queries.

Two passes compute the scores twice (7 products a tile for 5) and need no atomics: the gradients of two runs are
the same to the bit. `scale` is softmax_scale, for the gradients; `scale_log2` is softmax_scale * log2(e), for the
scores, which are in base 2 as in the forward.

Dropout multiplies p and dp by z, which is 0 or 1 / keep_probability: ds = p * (dp * z - delta). The kernels hold
keep_probability * ds = p * (dp if kept else 0 - keep_probability * delta), and divide dk, dv and dq once at the end.
"""

import triton
import triton.language as tl

from cs336_systems.attention.triton_kernels.dropout import keep_tile
from cs336_systems.attention.triton_kernels.tiles import load_rows, tile_of_program

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def flash_bwd_delta_kernel(
    O_ptr,
    dO_ptr,
    Delta_ptr,
    stride_ob,
    stride_oh,
    stride_oq,
    stride_od,
    stride_dob,
    stride_doh,
    stride_doq,
    stride_dod,
    NUM_HEADS,
    N_QUERIES,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
):
    """delta = rowsum(out * do), which is rowsum(p * dp) without the n x n matrices: one read of each, in float32."""
    tile, batch_head = tile_of_program(tl.cdiv(N_QUERIES, Q_TILE_SIZE), False)
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS

    rows = tile * Q_TILE_SIZE + tl.arange(0, Q_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    in_range = rows < N_QUERIES
    row_offsets = rows.to(tl.int64)[:, None]
    O_ptr += batch * stride_ob + head * stride_oh
    dO_ptr += batch * stride_dob + head * stride_doh
    out = load_rows(O_ptr + row_offsets * stride_oq + dims[None, :] * stride_od, in_range, dims, D, True)
    do = load_rows(dO_ptr + row_offsets * stride_doq + dims[None, :] * stride_dod, in_range, dims, D, True)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(Delta_ptr + batch_head * N_QUERIES + rows, delta, mask=in_range)


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
    Seed_ptr,
    drop_below,
    keep_probability,
    HEADS_PER_KV_HEAD: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """One program computes K_TILE_SIZE rows of dk and dv for one head of k and v of one batch element.

    Scores are held transposed, keys by queries, so that p and ds are already what dv and dk multiply.
    """
    # Inside torch.compile they come as float64.
    scale, scale_log2 = tl.cast(scale, tl.float32), tl.cast(scale_log2, tl.float32)
    # The first key tile is the heaviest: all queries see it.
    tile, batch_head = tile_of_program(tl.cdiv(N_KEYS, K_TILE_SIZE), False)
    k_start = tile * K_TILE_SIZE
    num_kv_heads = NUM_HEADS // HEADS_PER_KV_HEAD
    batch, kv_head = batch_head // num_kv_heads, batch_head % num_kv_heads

    keys = k_start + tl.arange(0, K_TILE_SIZE)
    rows = tl.arange(0, Q_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    key_offsets = keys.to(tl.int64)[:, None]
    key_mask = (keys < N_KEYS)[:, None] & (dims < D)[None, :]

    K_ptr += batch * stride_kb + kv_head * stride_kh
    V_ptr += batch * stride_vb + kv_head * stride_vh
    dK_ptr += batch * stride_dkb + kv_head * stride_dkh
    dV_ptr += batch * stride_dvb + kv_head * stride_dvh
    first_head = kv_head * HEADS_PER_KV_HEAD
    Q_ptr += batch * stride_qb + first_head * stride_qh
    dO_ptr += batch * stride_dob + first_head * stride_doh
    L_ptr += batch_head * HEADS_PER_KV_HEAD * N_QUERIES
    Delta_ptr += batch_head * HEADS_PER_KV_HEAD * N_QUERIES

    k = tl.load(K_ptr + key_offsets * stride_kk + dims[None, :] * stride_kd, mask=key_mask, other=0.0)
    v = tl.load(V_ptr + key_offsets * stride_vk + dims[None, :] * stride_vd, mask=key_mask, other=0.0)
    dk = tl.zeros((K_TILE_SIZE, D_PADDED), dtype=tl.float32)
    dv = tl.zeros((K_TILE_SIZE, D_PADDED), dtype=tl.float32)

    q_offsets = rows[:, None] * stride_qq + dims[None, :] * stride_qd
    do_offsets = rows[:, None] * stride_doq + dims[None, :] * stride_dod

    # A causal key tile begins at its diagonal, since no row before it sees these keys. Full tiles first, as in
    # the forward: the other order serializes the wgmma of both loops.
    q_first = k_start // Q_TILE_SIZE * Q_TILE_SIZE
    q_full = tl.cdiv(k_start + K_TILE_SIZE, Q_TILE_SIZE) * Q_TILE_SIZE if IS_CAUSAL else k_start * 0
    for group in tl.range(0, HEADS_PER_KV_HEAD, num_stages=1):
        q_head = batch_head * HEADS_PER_KV_HEAD + group
        dk, dv = visit_queries(
            dk, dv, Q_ptr, dO_ptr, q_offsets, do_offsets, L_ptr, Delta_ptr, k, v, keys, rows, dims,
            q_full, N_QUERIES, N_QUERIES, N_KEYS, stride_qq, stride_doq, scale_log2,
            Seed_ptr, drop_below, keep_probability, q_head, k_start,
            D, Q_TILE_SIZE, False, EVEN_QUERIES, EVEN_KEYS, INPUT_PRECISION,
        )  # fmt: skip
        if IS_CAUSAL:
            dk, dv = visit_queries(
                dk, dv, Q_ptr, dO_ptr, q_offsets, do_offsets, L_ptr, Delta_ptr, k, v, keys, rows, dims,
                q_first, tl.minimum(q_full, N_QUERIES), N_QUERIES, N_KEYS, stride_qq, stride_doq, scale_log2,
                Seed_ptr, drop_below, keep_probability, q_head, k_start,
                D, Q_TILE_SIZE, True, EVEN_QUERIES, EVEN_KEYS, INPUT_PRECISION,
            )  # fmt: skip
        Q_ptr += stride_qh
        dO_ptr += stride_doh
        L_ptr += N_QUERIES
        Delta_ptr += N_QUERIES

    if Seed_ptr is not None:
        dk, dv = dk / tl.cast(keep_probability, tl.float32), dv / tl.cast(keep_probability, tl.float32)
    dk = (dk * scale).to(dK_ptr.dtype.element_ty)
    dv = dv.to(dV_ptr.dtype.element_ty)
    tl.store(dK_ptr + key_offsets * stride_dkk + dims[None, :] * stride_dkd, dk, mask=key_mask)
    tl.store(dV_ptr + key_offsets * stride_dvk + dims[None, :] * stride_dvd, dv, mask=key_mask)


@triton.jit
def visit_queries(
    dk,
    dv,
    Q_ptr,
    dO_ptr,
    q_offsets,
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
    INPUT_PRECISION: tl.constexpr,
):
    """The query tiles from q_begin to q_end of one key tile."""
    Q_ptr += q_begin.to(tl.int64) * stride_qq
    dO_ptr += q_begin.to(tl.int64) * stride_doq
    # Diagonal tiles are one or two, and two pipelined loops in a kernel make ptxas serialize the wgmma of both.
    num_stages: tl.constexpr = 1 if MASK_CAUSAL else None
    if Seed_ptr is not None:
        seed = tl.load(Seed_ptr)
    for q_start in tl.range(q_begin, q_end, Q_TILE_SIZE, num_stages=num_stages):
        # Rows beyond the end load as zeros, and zeros of q and do contribute nothing: they need no mask. (But against a
        # key that holds an infinity: 0 * inf makes its dk and dv NaN. A mask costs d = 128, causal, 90 spills.)
        in_range = q_start + rows < N_QUERIES
        q = load_rows(Q_ptr + q_offsets, in_range, dims, D, not EVEN_QUERIES)
        do = load_rows(dO_ptr + do_offsets, in_range, dims, D, not EVEN_QUERIES)
        lse = tl.load(L_ptr + q_start + rows, mask=in_range, other=0.0) * LOG2_E
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
    Seed_ptr,
    drop_below,
    keep_probability,
    HEADS_PER_KV_HEAD: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """One program computes Q_TILE_SIZE rows of dq for one head of one batch element."""
    # Inside torch.compile they come as float64.
    scale, scale_log2 = tl.cast(scale, tl.float32), tl.cast(scale_log2, tl.float32)
    tile, batch_head = tile_of_program(tl.cdiv(N_QUERIES, Q_TILE_SIZE), IS_CAUSAL)
    q_start = tile * Q_TILE_SIZE
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS

    rows = q_start + tl.arange(0, Q_TILE_SIZE)
    columns = tl.arange(0, K_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    row_offsets = rows.to(tl.int64)[:, None]
    row_mask = (rows < N_QUERIES)[:, None] & (dims < D)[None, :]

    Q_ptr += batch * stride_qb + head * stride_qh
    dO_ptr += batch * stride_dob + head * stride_doh
    dQ_ptr += batch * stride_dqb + head * stride_dqh
    K_ptr += batch * stride_kb + head // HEADS_PER_KV_HEAD * stride_kh
    V_ptr += batch * stride_vb + head // HEADS_PER_KV_HEAD * stride_vh
    L_ptr += batch_head * N_QUERIES
    Delta_ptr += batch_head * N_QUERIES

    q = tl.load(Q_ptr + row_offsets * stride_qq + dims[None, :] * stride_qd, mask=row_mask, other=0.0)
    do = tl.load(dO_ptr + row_offsets * stride_doq + dims[None, :] * stride_dod, mask=row_mask, other=0.0)
    lse = tl.load(L_ptr + rows, mask=rows < N_QUERIES, other=0.0) * LOG2_E
    delta = tl.load(Delta_ptr + rows, mask=rows < N_QUERIES, other=0.0)
    if Seed_ptr is not None:
        delta *= tl.cast(keep_probability, tl.float32)
    dq = tl.zeros((Q_TILE_SIZE, D_PADDED), dtype=tl.float32)

    k_offsets = columns[:, None] * stride_kk + dims[None, :] * stride_kd
    v_offsets = columns[:, None] * stride_vk + dims[None, :] * stride_vd

    # Full tiles, then edge tiles, as in the forward.
    k_full = N_KEYS // K_TILE_SIZE * K_TILE_SIZE
    k_end = N_KEYS
    if IS_CAUSAL:
        k_full = tl.minimum(k_full, q_start // K_TILE_SIZE * K_TILE_SIZE)
        k_end = tl.minimum(k_end, q_start + Q_TILE_SIZE)
    dq, K_ptr, V_ptr = visit_keys(
        dq, K_ptr, V_ptr, k_offsets, v_offsets, q, do, lse, delta, rows, columns, dims, 0, k_full, N_KEYS,
        stride_kk, stride_vk, scale_log2, Seed_ptr, drop_below, batch_head, q_start,
        D, K_TILE_SIZE, False, True, INPUT_PRECISION,
    )  # fmt: skip
    if IS_CAUSAL or not EVEN_KEYS:
        dq, K_ptr, V_ptr = visit_keys(
            dq, K_ptr, V_ptr, k_offsets, v_offsets, q, do, lse, delta, rows, columns, dims, k_full, k_end, N_KEYS,
            stride_kk, stride_vk, scale_log2, Seed_ptr, drop_below, batch_head, q_start,
            D, K_TILE_SIZE, IS_CAUSAL, EVEN_KEYS, INPUT_PRECISION,
        )  # fmt: skip

    if Seed_ptr is not None:
        dq = dq / tl.cast(keep_probability, tl.float32)
    dq = (dq * scale).to(dQ_ptr.dtype.element_ty)
    tl.store(dQ_ptr + row_offsets * stride_dqq + dims[None, :] * stride_dqd, dq, mask=row_mask)


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
    batch_head,
    q_start,
    D: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    MASK_CAUSAL: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """The key tiles from k_begin to k_end of one query tile; the pointers leave off at k_end."""
    # Edge tiles are one or two, and two pipelined loops in a kernel make ptxas serialize the wgmma of both.
    num_stages: tl.constexpr = 1 if MASK_CAUSAL or not EVEN_KEYS else None
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
            keep = keep_tile(seed, drop_below, batch_head, q_start, k_start, q.shape[0], K_TILE_SIZE, False)
            dp = tl.where(keep, dp, 0.0)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=INPUT_PRECISION)
        K_ptr += K_TILE_SIZE * stride_kk
        V_ptr += K_TILE_SIZE * stride_vk
    return dq, K_ptr, V_ptr


@triton.jit
def flash_bwd_round_dq_kernel(Sums_ptr, dQ_ptr, NUMEL, scale, TILE_ELEMENTS: tl.constexpr):
    """dq = sums * scale in dq's dtype, of float32 `sums` that lie in memory as dq does: for `backward_hopper`."""
    scale = tl.cast(scale, tl.float32)
    offsets = tl.program_id(0).to(tl.int64) * TILE_ELEMENTS + tl.arange(0, TILE_ELEMENTS)
    sums = tl.load(Sums_ptr + offsets, mask=offsets < NUMEL)
    tl.store(dQ_ptr + offsets, (sums * scale).to(dQ_ptr.dtype.element_ty), mask=offsets < NUMEL)
