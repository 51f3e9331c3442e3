"""The backward's pass over keys: dk and dv of a tile of them, from all queries that see it."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_kernels.common import LOG2_E, Place, Stream, delta_of_rows, load_rows
from cs336_systems.attention.triton_kernels.dropout import keep_tile


@triton.jit
def dk_dv_of_tile(
    q_rows, k_rows, v_rows, o_rows, do_rows, lse_ptr, delta_ptr, dk_rows, dv_rows, N_QUERIES, N_KEYS, scale, dropout,
    first_q_head, k_start, config,
):  # fmt: skip
    """Compute dk and dv of K_TILE_SIZE keys from k_start on. delta_ptr is None if delta is computed from o_rows.

    Rows are at the head of k and v, and at `first_q_head`, counted over the batch, of the heads that it serves. Scores
    are transposed, keys by queries, so that p and ds are the left operands of dv and dk.
    """
    D: tl.constexpr = config.D
    K_TILE_SIZE: tl.constexpr = config.K_TILE_SIZE
    Q_TILE_SIZE: tl.constexpr = config.Q_TILE_SIZE
    IS_CAUSAL: tl.constexpr = config.IS_CAUSAL
    ONE_LOOP: tl.constexpr = config.ONE_LOOP
    Q_ptr, O_ptr, dO_ptr = q_rows.ptr, o_rows.ptr, do_rows.ptr
    L_ptr = lse_ptr + first_q_head * N_QUERIES
    Delta_ptr = delta_ptr
    if Delta_ptr is not None:
        Delta_ptr += first_q_head * N_QUERIES
    keys = k_start + tl.arange(0, K_TILE_SIZE)
    rows = tl.arange(0, Q_TILE_SIZE)
    dims = tl.arange(0, config.D_PADDED)
    key_offsets = keys.to(tl.int64)[:, None]
    key_mask = (keys < N_KEYS)[:, None] & (dims < D)[None, :]
    k = tl.load(k_rows.ptr + key_offsets * k_rows.stride + dims[None, :], mask=key_mask, other=0.0)
    v = tl.load(v_rows.ptr + key_offsets * v_rows.stride + dims[None, :], mask=key_mask, other=0.0)
    dk = tl.zeros((K_TILE_SIZE, config.D_PADDED), dtype=tl.float32)
    dv = tl.zeros((K_TILE_SIZE, config.D_PADDED), dtype=tl.float32)

    q_offsets = rows[:, None] * q_rows.stride + dims[None, :]
    o_offsets = rows[:, None] * o_rows.stride + dims[None, :]
    do_offsets = rows[:, None] * do_rows.stride + dims[None, :]

    # A causal key tile begins at its diagonal, since no row before it sees these keys. Full tiles first, as in
    # the forward: the other order serializes the wgmma of both loops. ONE_LOOP masks them all, in half the code.
    q_first = k_start // Q_TILE_SIZE * Q_TILE_SIZE
    q_full = tl.cdiv(k_start + K_TILE_SIZE, Q_TILE_SIZE) * Q_TILE_SIZE if IS_CAUSAL else k_start * 0
    q_masked_end = N_QUERIES if ONE_LOOP else tl.minimum(q_full, N_QUERIES)
    for group in tl.range(0, config.HEADS_PER_KV_HEAD, num_stages=1):
        q_head = first_q_head + group
        if not (ONE_LOOP and IS_CAUSAL):
            dk, dv = visit_queries(
                (dk, dv), Stream(Q_ptr, q_offsets, q_rows.stride), Stream(O_ptr, o_offsets, o_rows.stride),
                Stream(dO_ptr, do_offsets, do_rows.stride), L_ptr, Delta_ptr, k, v,
                Place(k_start, keys, rows, dims, q_head), (q_full, N_QUERIES), N_QUERIES, N_KEYS, scale.log2, dropout,
                config, MASK_CAUSAL=False,
            )  # fmt: skip
        if IS_CAUSAL:
            dk, dv = visit_queries(
                (dk, dv), Stream(Q_ptr, q_offsets, q_rows.stride), Stream(O_ptr, o_offsets, o_rows.stride),
                Stream(dO_ptr, do_offsets, do_rows.stride), L_ptr, Delta_ptr, k, v,
                Place(k_start, keys, rows, dims, q_head), (q_first, q_masked_end), N_QUERIES, N_KEYS, scale.log2,
                dropout, config, MASK_CAUSAL=True,
            )  # fmt: skip
        Q_ptr += q_rows.head_stride
        dO_ptr += do_rows.head_stride
        L_ptr += N_QUERIES
        if Delta_ptr is None:
            O_ptr += o_rows.head_stride
        else:
            Delta_ptr += N_QUERIES

    if dropout.seed_ptr is not None:
        dk, dv = dk / tl.cast(dropout.keep_probability, tl.float32), dv / tl.cast(dropout.keep_probability, tl.float32)
    dk = (dk * scale.natural).to(dk_rows.ptr.dtype.element_ty)
    dv = dv.to(dv_rows.ptr.dtype.element_ty)
    tl.store(dk_rows.ptr + key_offsets * dk_rows.stride + dims[None, :], dk, mask=key_mask)
    tl.store(dv_rows.ptr + key_offsets * dv_rows.stride + dims[None, :], dv, mask=key_mask)


@triton.jit
def visit_queries(
    state, q_stream, o_stream, do_stream, L_ptr, Delta_ptr, k, v, place, span, N_QUERIES, N_KEYS, scale_log2, dropout,
    config, MASK_CAUSAL: tl.constexpr,
):  # fmt: skip
    """Visit the query tiles of a span for one key tile; streams begin at query 0."""
    D: tl.constexpr = config.D
    Q_TILE_SIZE: tl.constexpr = config.Q_TILE_SIZE
    EVEN_QUERIES: tl.constexpr = config.EVEN_QUERIES
    ONE_LOOP: tl.constexpr = config.ONE_LOOP
    INPUT_PRECISION: tl.constexpr = config.INPUT_PRECISION
    dk, dv = state
    Q_ptr, O_ptr, dO_ptr = q_stream.ptr, o_stream.ptr, do_stream.ptr
    Q_ptr += span[0].to(tl.int64) * q_stream.stride
    dO_ptr += span[0].to(tl.int64) * do_stream.stride
    if Delta_ptr is None:
        O_ptr += span[0].to(tl.int64) * o_stream.stride
    # Diagonal tiles are one or two, and two pipelined loops in a kernel make ptxas serialize the wgmma of both.
    num_stages: tl.constexpr = 1 if MASK_CAUSAL and not ONE_LOOP else None
    if dropout.seed_ptr is not None:
        seed = tl.load(dropout.seed_ptr)
    for q_start in tl.range(span[0], span[1], Q_TILE_SIZE, num_stages=num_stages):
        # Rows beyond the end load as zeros, and zeros of q and do contribute nothing: they need no mask. (But against a
        # key that holds an infinity: 0 * inf makes its dk and dv NaN. A mask costs d = 128, causal, 90 spills.)
        in_range = q_start + place.visited < N_QUERIES
        q = load_rows(Q_ptr + q_stream.offsets, in_range, place.dims, D, not EVEN_QUERIES)
        do = load_rows(dO_ptr + do_stream.offsets, in_range, place.dims, D, not EVEN_QUERIES)
        lse = tl.load(L_ptr + q_start + place.visited, mask=in_range, other=0.0) * LOG2_E
        if Delta_ptr is None:
            delta = delta_of_rows(load_rows(O_ptr + o_stream.offsets, in_range, place.dims, D, not EVEN_QUERIES), do)
            O_ptr += Q_TILE_SIZE * o_stream.stride
        else:
            delta = tl.load(Delta_ptr + q_start + place.visited, mask=in_range, other=0.0)

        # Masked before exp2, which may be infinite at a score that no softmax has seen.
        scores = tl.dot(k, tl.trans(q), input_precision=INPUT_PRECISION) * scale_log2
        if not config.EVEN_KEYS:
            scores = tl.where((place.rows < N_KEYS)[:, None], scores, float("-inf"))
        if MASK_CAUSAL:
            scores = tl.where((q_start + place.visited)[None, :] >= place.rows[:, None], scores, float("-inf"))
        p = tl.exp2(scores - lse[None, :])
        kept_p = p
        if dropout.seed_ptr is not None:
            keep = keep_tile(seed, dropout.drop_below, place.head, q_start, place.start, Q_TILE_SIZE, k.shape[0], True)
            kept_p = tl.where(keep, p, 0.0)
        dv = tl.dot(kept_p.to(do.dtype), do, dv, input_precision=INPUT_PRECISION)
        dp = tl.dot(v, tl.trans(do), input_precision=INPUT_PRECISION)
        if dropout.seed_ptr is not None:
            dp = tl.where(keep, dp, 0.0)
            delta *= tl.cast(dropout.keep_probability, tl.float32)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=INPUT_PRECISION)
        Q_ptr += Q_TILE_SIZE * q_stream.stride
        dO_ptr += Q_TILE_SIZE * do_stream.stride
    return dk, dv
