"""FlashAttention-2, forward: Algorithm 1 of Dao (2023)."""

import triton
import triton.language as tl

from cs336_systems.attention.triton_kernels.common import (
    LN_2,
    MIN_FLOAT32,
    Dropout,
    Place,
    Stream,
    load_rows,
    rows_at,
    tile_of_program,
)
from cs336_systems.attention.triton_kernels.dropout import keep_tile


@triton.jit
def flash_fwd_kernel(
    Q_ptr,
    K_ptr,
    V_ptr,
    O_ptr,
    L_ptr,
    Seed_ptr,
    stride_qb,
    stride_qh,
    stride_qq,
    stride_kb,
    stride_kh,
    stride_kk,
    stride_vb,
    stride_vh,
    stride_vk,
    stride_ob,
    stride_oh,
    stride_oq,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    scale_log2,
    drop_below,
    keep_probability,
    HEADS_PER_KV_HEAD: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    STRIDE_UNIT: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Compute Q_TILE_SIZE rows of out and lse for one head of one batch element.

    `scale_log2` is softmax_scale * log2(e): scores, their maximum and their sum are all in base 2. `Seed_ptr`,
    `drop_below` and `keep_probability` are None without dropout.
    """
    scale_log2 = tl.cast(scale_log2, tl.float32)  # torch.compile passes it as float64
    tile, batch_head = tile_of_program(tl.cdiv(N_QUERIES, Q_TILE_SIZE), IS_CAUSAL)
    q_start = tile * Q_TILE_SIZE
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS

    rows = q_start + tl.arange(0, Q_TILE_SIZE)
    columns = tl.arange(0, K_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    row_offsets = rows.to(tl.int64)[:, None]

    kv_head = head // HEADS_PER_KV_HEAD
    q_rows = rows_at(Q_ptr, batch * stride_qb + head * stride_qh, stride_qh, stride_qq, STRIDE_UNIT)
    k_rows = rows_at(K_ptr, batch * stride_kb + kv_head * stride_kh, stride_kh, stride_kk, STRIDE_UNIT)
    v_rows = rows_at(V_ptr, batch * stride_vb + kv_head * stride_vh, stride_vh, stride_vk, STRIDE_UNIT)
    o_rows = rows_at(O_ptr, batch * stride_ob + head * stride_oh, stride_oh, stride_oq, STRIDE_UNIT)
    K_ptr, V_ptr = k_rows.ptr, v_rows.ptr
    L_ptr += batch_head * N_QUERIES

    row_mask = (rows < N_QUERIES)[:, None] & (dims < D)[None, :]
    q = tl.load(q_rows.ptr + row_offsets * q_rows.stride + dims[None, :], mask=row_mask, other=0.0)
    acc = tl.zeros((Q_TILE_SIZE, D_PADDED), dtype=tl.float32)
    row_sum = tl.zeros((Q_TILE_SIZE,), dtype=tl.float32)
    row_max = tl.full((Q_TILE_SIZE,), MIN_FLOAT32, dtype=tl.float32)

    k_offsets = columns[:, None] * k_rows.stride + dims[None, :]
    v_offsets = columns[:, None] * v_rows.stride + dims[None, :]

    # Full tiles first: all their keys exist and are seen by all rows, so their code holds no mask. Edge tiles
    # follow: those on the diagonal, and the last one if the keys do not fill it.
    k_full = N_KEYS // K_TILE_SIZE * K_TILE_SIZE
    k_end = N_KEYS
    if IS_CAUSAL:
        k_full = tl.minimum(k_full, q_start // K_TILE_SIZE * K_TILE_SIZE)
        k_end = tl.minimum(k_end, q_start + Q_TILE_SIZE)
    place = Place(q_start, rows, columns, dims, batch_head)
    acc, row_sum, row_max, K_ptr, V_ptr = visit_keys(
        (acc, row_sum, row_max),
        Stream(K_ptr, k_offsets, k_rows.stride), Stream(V_ptr, v_offsets, v_rows.stride), q, place,
        (0, k_full), N_KEYS, scale_log2, Dropout(Seed_ptr, drop_below, keep_probability),
        D, K_TILE_SIZE, MASK_CAUSAL=False, EVEN_KEYS=True, INPUT_PRECISION=INPUT_PRECISION,
    )  # fmt: skip
    if IS_CAUSAL or not EVEN_KEYS:
        acc, row_sum, row_max, K_ptr, V_ptr = visit_keys(
            (acc, row_sum, row_max),
            Stream(K_ptr, k_offsets, k_rows.stride), Stream(V_ptr, v_offsets, v_rows.stride), q, place,
            (k_full, k_end), N_KEYS, scale_log2, Dropout(Seed_ptr, drop_below, keep_probability),
            D, K_TILE_SIZE, MASK_CAUSAL=IS_CAUSAL, EVEN_KEYS=EVEN_KEYS, INPUT_PRECISION=INPUT_PRECISION,
        )  # fmt: skip

    kept_sum = row_sum  # dropped probabilities count in the softmax's denominator, and in lse
    if Seed_ptr is not None:
        kept_sum = row_sum * tl.cast(keep_probability, tl.float32)
    out = (acc / kept_sum[:, None]).to(O_ptr.dtype.element_ty)
    tl.store(o_rows.ptr + row_offsets * o_rows.stride + dims[None, :], out, mask=row_mask)
    # Base 2 inside, natural outside: lse = ln(2) * log2(sum of 2^scores).
    tl.store(L_ptr + rows, (row_max + tl.log2(row_sum)) * LN_2, mask=rows < N_QUERIES)


@triton.jit
def visit_keys(
    state, k_stream, v_stream, q, place, span, N_KEYS, scale_log2, dropout,
    D: tl.constexpr, K_TILE_SIZE: tl.constexpr, MASK_CAUSAL: tl.constexpr, EVEN_KEYS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Run the inner loop of Algorithm 1 over the key tiles of a span; returned pointers are at its end.

    The loop carries two scalar pointers: two tiles of pointers would take 128 registers of a thread, and spill.
    """
    acc, row_sum, row_max = state
    K_ptr, V_ptr = k_stream.ptr, v_stream.ptr
    # Edge tiles are one or two, and two pipelined loops in a kernel make ptxas serialize the wgmma of both.
    num_stages: tl.constexpr = 1 if MASK_CAUSAL or not EVEN_KEYS else None
    if dropout.seed_ptr is not None:
        seed = tl.load(dropout.seed_ptr)
    for k_start in tl.range(span[0], span[1], K_TILE_SIZE, num_stages=num_stages):
        in_range = k_start + place.visited < N_KEYS
        k = load_rows(K_ptr + k_stream.offsets, in_range, place.dims, D, not EVEN_KEYS)
        v = load_rows(V_ptr + v_stream.offsets, in_range, place.dims, D, not EVEN_KEYS)
        scores = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * scale_log2
        if not EVEN_KEYS:
            scores = tl.where(in_range[None, :], scores, float("-inf"))
        if MASK_CAUSAL:
            scores = tl.where(place.rows[:, None] >= (k_start + place.visited)[None, :], scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, 1))
        rescale = tl.exp2(row_max - new_max)
        p = tl.exp2(scores - new_max[:, None])
        row_sum = rescale * row_sum + tl.sum(p, 1)
        if dropout.seed_ptr is not None:
            keep = keep_tile(seed, dropout.drop_below, place.head, place.start, k_start, q.shape[0], K_TILE_SIZE, False)
            p = tl.where(keep, p, 0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=INPUT_PRECISION)
        row_max = new_max
        K_ptr += K_TILE_SIZE * k_stream.stride
        V_ptr += K_TILE_SIZE * v_stream.stride
    return acc, row_sum, row_max, K_ptr, V_ptr
