"""The backward's pass over queries: dq of a tile of them, from all keys that they see."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_kernels.common import LOG2_E, Place, Stream, delta_of_rows, load_rows
from cs336_systems.attention.triton_kernels.dropout import keep_tile


@triton.jit
def dq_of_tile(
    q_rows, k_rows, v_rows, o_rows, do_rows, L_ptr, Delta_ptr, dq_rows, N_QUERIES, N_KEYS, scale, dropout, q_head,
    q_start, config,
):  # fmt: skip
    """Compute dq of Q_TILE_SIZE queries from q_start on. Delta_ptr is None if delta is computed from o_rows.

    Rows are at the head of q, which is `q_head`, counted over the batch, and at that of its k and v.
    """
    D: tl.constexpr = config.D
    K_TILE_SIZE: tl.constexpr = config.K_TILE_SIZE
    IS_CAUSAL: tl.constexpr = config.IS_CAUSAL
    EVEN_KEYS: tl.constexpr = config.EVEN_KEYS
    L_ptr += q_head * N_QUERIES
    rows = q_start + tl.arange(0, config.Q_TILE_SIZE)
    columns = tl.arange(0, K_TILE_SIZE)
    dims = tl.arange(0, config.D_PADDED)
    in_range = rows < N_QUERIES
    row_offsets = rows.to(tl.int64)[:, None]

    q = load_rows(q_rows.ptr + row_offsets * q_rows.stride + dims[None, :], in_range, dims, D, True)
    do = load_rows(do_rows.ptr + row_offsets * do_rows.stride + dims[None, :], in_range, dims, D, True)
    lse = tl.load(L_ptr + rows, mask=in_range, other=0.0) * LOG2_E
    if Delta_ptr is None:
        delta = delta_of_rows(
            load_rows(o_rows.ptr + row_offsets * o_rows.stride + dims[None, :], in_range, dims, D, True), do
        )
    else:
        delta = tl.load(Delta_ptr + q_head * N_QUERIES + rows, mask=in_range, other=0.0)
    if dropout.seed_ptr is not None:
        delta *= tl.cast(dropout.keep_probability, tl.float32)
    dq = tl.zeros((config.Q_TILE_SIZE, config.D_PADDED), dtype=tl.float32)

    K_ptr, V_ptr = k_rows.ptr, v_rows.ptr
    k_offsets = columns[:, None] * k_rows.stride + dims[None, :]
    v_offsets = columns[:, None] * v_rows.stride + dims[None, :]

    # Full tiles, then edge tiles, as in the forward.
    k_full = N_KEYS // K_TILE_SIZE * K_TILE_SIZE
    k_end = N_KEYS
    if IS_CAUSAL:
        k_full = tl.minimum(k_full, q_start // K_TILE_SIZE * K_TILE_SIZE)
        k_end = tl.minimum(k_end, q_start + config.Q_TILE_SIZE)
    if config.ONE_LOOP and (IS_CAUSAL or not EVEN_KEYS):
        k_full = 0
    else:
        dq, K_ptr, V_ptr = visit_keys(
            dq, Stream(K_ptr, k_offsets, k_rows.stride), Stream(V_ptr, v_offsets, v_rows.stride), q, do, lse, delta,
            Place(q_start, rows, columns, dims, q_head), (0, k_full), N_KEYS, scale.log2, dropout, config,
            MASK_CAUSAL=False, EVEN_KEYS=True,
        )  # fmt: skip
    if IS_CAUSAL or not EVEN_KEYS:
        dq, K_ptr, V_ptr = visit_keys(
            dq, Stream(K_ptr, k_offsets, k_rows.stride), Stream(V_ptr, v_offsets, v_rows.stride), q, do, lse, delta,
            Place(q_start, rows, columns, dims, q_head), (k_full, k_end), N_KEYS, scale.log2, dropout, config,
            MASK_CAUSAL=IS_CAUSAL, EVEN_KEYS=EVEN_KEYS,
        )  # fmt: skip

    if dropout.seed_ptr is not None:
        dq = dq / tl.cast(dropout.keep_probability, tl.float32)
    dq = (dq * scale.natural).to(dq_rows.ptr.dtype.element_ty)
    row_mask = in_range[:, None] & (dims < D)[None, :]
    tl.store(dq_rows.ptr + row_offsets * dq_rows.stride + dims[None, :], dq, mask=row_mask)


@triton.jit
def visit_keys(
    dq, k_stream, v_stream, q, do, lse, delta, place, span, N_KEYS, scale_log2, dropout, config,
    MASK_CAUSAL: tl.constexpr, EVEN_KEYS: tl.constexpr,
):  # fmt: skip
    """Visit the key tiles of a span for one query tile; returned pointers are at its end."""
    D: tl.constexpr = config.D
    K_TILE_SIZE: tl.constexpr = config.K_TILE_SIZE
    ONE_LOOP: tl.constexpr = config.ONE_LOOP
    INPUT_PRECISION: tl.constexpr = config.INPUT_PRECISION
    K_ptr, V_ptr = k_stream.ptr, v_stream.ptr
    # Edge tiles are one or two, and two pipelined loops in a kernel make ptxas serialize the wgmma of both.
    num_stages: tl.constexpr = 1 if (MASK_CAUSAL or not EVEN_KEYS) and not ONE_LOOP else None
    if dropout.seed_ptr is not None:
        seed = tl.load(dropout.seed_ptr)
    for k_start in tl.range(span[0], span[1], K_TILE_SIZE, num_stages=num_stages):
        in_range = k_start + place.visited < N_KEYS
        k = load_rows(K_ptr + k_stream.offsets, in_range, place.dims, D, not EVEN_KEYS)
        v = load_rows(V_ptr + v_stream.offsets, in_range, place.dims, D, not EVEN_KEYS)
        # Masked before exp2, which may be infinite at a score that no softmax has seen.
        scores = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * scale_log2
        if not EVEN_KEYS:
            scores = tl.where(in_range[None, :], scores, float("-inf"))
        if MASK_CAUSAL:
            scores = tl.where(place.rows[:, None] >= (k_start + place.visited)[None, :], scores, float("-inf"))
        p = tl.exp2(scores - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision=INPUT_PRECISION)
        if dropout.seed_ptr is not None:
            keep = keep_tile(seed, dropout.drop_below, place.head, place.start, k_start, q.shape[0], K_TILE_SIZE, False)
            dp = tl.where(keep, dp, 0.0)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=INPUT_PRECISION)
        K_ptr += K_TILE_SIZE * k_stream.stride
        V_ptr += K_TILE_SIZE * v_stream.stride
    return dq, K_ptr, V_ptr
