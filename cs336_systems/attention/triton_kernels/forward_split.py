"""FlashAttention-2's forward where heads and queries are too few to fill the GPU, so that keys are split as well.

Each program attends to one chunk of the keys; a second kernel adds the parts, weighted by their shares of the softmax's
sum (Flash-Decoding, Dao et al. 2023), in the order of their keys: the result repeats to the bit. With OVERLAPS, from
compute capability 9.0 on, the second kernel is launched while the first runs, and waits for its end.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cs336_systems.attention.triton_kernels.common import LN_2, MIN_FLOAT32, Dropout, Place, Stream, rows_at
from cs336_systems.attention.triton_kernels.forward import visit_keys


@triton.jit
def flash_fwd_split_kernel(
    Q_ptr,
    K_ptr,
    V_ptr,
    Part_ptr,
    PartL_ptr,
    stride_qb,
    stride_qh,
    stride_qq,
    stride_kb,
    stride_kh,
    stride_kk,
    stride_vb,
    stride_vh,
    stride_vk,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    scale_log2,
    HEADS_PER_KV_HEAD: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    STRIDE_UNIT: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    CHUNK_KEYS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Compute Q_TILE_SIZE rows of one chunk's out and lse (float32, base 2) for one head.

    Parts are (chunks, heads, N_QUERIES, D). CHUNK_KEYS is a multiple of both tiles' sizes, so that every row of a
    tile sees the first key of each chunk that the tile visits. A part that no row sees is not written.
    """
    if OVERLAPS:
        gdc_launch_dependents()
    scale_log2 = tl.cast(scale_log2, tl.float32)  # torch.compile passes it as float64
    num_tiles = tl.cdiv(N_QUERIES, Q_TILE_SIZE)
    num_chunks = tl.cdiv(N_KEYS, CHUNK_KEYS)
    program = tl.program_id(0)
    chunk = program % num_chunks
    tile = num_tiles - 1 - program // num_chunks % num_tiles  # the heaviest first
    batch_head = (program // num_chunks // num_tiles).to(tl.int64)
    num_batch_heads = (tl.num_programs(0) // num_chunks // num_tiles).to(tl.int64)
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS
    q_start = tile * Q_TILE_SIZE
    k_begin = chunk * CHUNK_KEYS
    k_end = tl.minimum(N_KEYS, k_begin + CHUNK_KEYS)
    k_full = k_end // K_TILE_SIZE * K_TILE_SIZE
    if IS_CAUSAL:
        k_end = tl.minimum(k_end, q_start + Q_TILE_SIZE)
        k_full = tl.minimum(k_full, q_start // K_TILE_SIZE * K_TILE_SIZE)
    k_full = tl.maximum(k_full, k_begin)
    if k_begin < k_end:
        rows = q_start + tl.arange(0, Q_TILE_SIZE)
        columns = tl.arange(0, K_TILE_SIZE)
        dims = tl.arange(0, D_PADDED)
        row_offsets = rows.to(tl.int64)[:, None]
        row_mask = (rows < N_QUERIES)[:, None] & (dims < D)[None, :]
        first_key = k_begin.to(tl.int64)
        kv_head = head // HEADS_PER_KV_HEAD
        q_rows = rows_at(Q_ptr, batch * stride_qb + head * stride_qh, stride_qh, stride_qq, STRIDE_UNIT)
        k_rows = rows_at(K_ptr, batch * stride_kb + kv_head * stride_kh, stride_kh, stride_kk, STRIDE_UNIT)
        v_rows = rows_at(V_ptr, batch * stride_vb + kv_head * stride_vh, stride_vh, stride_vk, STRIDE_UNIT)
        K_ptr = k_rows.ptr + first_key * k_rows.stride
        V_ptr = v_rows.ptr + first_key * v_rows.stride
        q = tl.load(q_rows.ptr + row_offsets * q_rows.stride + dims[None, :], mask=row_mask, other=0.0)
        acc = tl.zeros((Q_TILE_SIZE, D_PADDED), dtype=tl.float32)
        row_sum = tl.zeros((Q_TILE_SIZE,), dtype=tl.float32)
        row_max = tl.full((Q_TILE_SIZE,), MIN_FLOAT32, dtype=tl.float32)
        k_offsets = columns[:, None] * k_rows.stride + dims[None, :]
        v_offsets = columns[:, None] * v_rows.stride + dims[None, :]
        place = Place(q_start, rows, columns, dims, batch_head)
        acc, row_sum, row_max, K_ptr, V_ptr = visit_keys(
            (acc, row_sum, row_max),
            Stream(K_ptr, k_offsets, k_rows.stride), Stream(V_ptr, v_offsets, v_rows.stride), q, place,
            (k_begin, k_full), N_KEYS, scale_log2, Dropout(None, None, None),
            D, K_TILE_SIZE, MASK_CAUSAL=False, EVEN_KEYS=True, INPUT_PRECISION=INPUT_PRECISION,
        )  # fmt: skip
        if IS_CAUSAL or not EVEN_KEYS:
            acc, row_sum, row_max, K_ptr, V_ptr = visit_keys(
                (acc, row_sum, row_max),
                Stream(K_ptr, k_offsets, k_rows.stride), Stream(V_ptr, v_offsets, v_rows.stride), q, place,
                (k_full, k_end), N_KEYS, scale_log2, Dropout(None, None, None),
                D, K_TILE_SIZE, MASK_CAUSAL=IS_CAUSAL, EVEN_KEYS=EVEN_KEYS, INPUT_PRECISION=INPUT_PRECISION,
            )  # fmt: skip
        part_rows = (chunk * num_batch_heads + batch_head) * N_QUERIES + rows
        part = acc / row_sum[:, None]
        tl.store(Part_ptr + part_rows[:, None] * D + dims[None, :], part, mask=row_mask)
        tl.store(PartL_ptr + part_rows, row_max + tl.log2(row_sum), mask=rows < N_QUERIES)


@triton.jit
def flash_fwd_combine_kernel(
    Part_ptr,
    PartL_ptr,
    O_ptr,
    L_ptr,
    stride_ob,
    stride_oh,
    stride_oq,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    STRIDE_UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK_KEYS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Add the parts of ROWS rows of out and lse (natural) for one head, each weighted by 2^(its lse - lse).

    A weight of 0 stands for a part whose scores were all -inf, which holds NaN.
    """
    num_tiles = tl.cdiv(N_QUERIES, ROWS)
    program = tl.program_id(0)
    start = program % num_tiles * ROWS
    batch_head = (program // num_tiles).to(tl.int64)
    num_batch_heads = (tl.num_programs(0) // num_tiles).to(tl.int64)
    rows = start + tl.arange(0, ROWS)
    dims = tl.arange(0, D_PADDED)
    mask = rows < N_QUERIES
    row_mask = mask[:, None] & (dims < D)[None, :]
    num_chunks = tl.cdiv(N_KEYS, CHUNK_KEYS)
    if IS_CAUSAL:
        num_chunks = tl.minimum(num_chunks, tl.cdiv(start + ROWS, CHUNK_KEYS))
    acc = tl.zeros((ROWS, D_PADDED), dtype=tl.float32)
    row_sum = tl.zeros((ROWS,), dtype=tl.float32)
    row_max = tl.full((ROWS,), MIN_FLOAT32, dtype=tl.float32)
    if OVERLAPS:
        gdc_wait()
    for chunk in tl.range(0, num_chunks):
        part_rows = (chunk * num_batch_heads + batch_head) * N_QUERIES + rows
        lse = tl.load(PartL_ptr + part_rows, mask=mask, other=0.0)
        part = tl.load(Part_ptr + part_rows[:, None] * D + dims[None, :], mask=row_mask, other=0.0)
        new_max = tl.maximum(row_max, lse)
        rescale = tl.exp2(row_max - new_max)
        weight = tl.exp2(lse - new_max)
        row_sum = row_sum * rescale + weight
        weighted = tl.where((weight == 0.0)[:, None], 0.0, part * weight[:, None])
        acc = acc * rescale[:, None] + weighted
        row_max = new_max
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS
    o_rows = rows_at(O_ptr, batch * stride_ob + head * stride_oh, stride_oh, stride_oq, STRIDE_UNIT)
    out = (acc / row_sum[:, None]).to(O_ptr.dtype.element_ty)
    row_offsets = rows.to(tl.int64)[:, None]
    tl.store(o_rows.ptr + row_offsets * o_rows.stride + dims[None, :], out, mask=row_mask)
    tl.store(L_ptr + batch_head * N_QUERIES + rows, (row_max + tl.log2(row_sum)) * LN_2, mask=mask)
