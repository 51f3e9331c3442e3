"""FlashAttention-2, forward: Algorithm 1 of Dao (2023)."""

import triton
import triton.language as tl

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def flash_fwd_kernel(
    Q_ptr,
    K_ptr,
    V_ptr,
    O_ptr,
    L_ptr,
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
    stride_ob,
    stride_oh,
    stride_oq,
    stride_od,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    scale_log2,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
    K_TILE_SIZE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """One program computes Q_TILE_SIZE rows of out and lse for one head of one batch element.

    `scale_log2` is softmax_scale * log2(e): scores, their maximum and their sum are all in base 2.
    """
    q_start = tl.program_id(0) * Q_TILE_SIZE
    # 64 bits wherever a whole head or a whole sequence is skipped: 2^31 elements are 256 heads of 65536 x 128.
    batch_head = tl.program_id(1).to(tl.int64)
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS

    rows = q_start + tl.arange(0, Q_TILE_SIZE)
    columns = tl.arange(0, K_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    row_offsets = rows.to(tl.int64)[:, None]

    Q_ptr += batch * stride_qb + head * stride_qh
    K_ptr += batch * stride_kb + head * stride_kh
    V_ptr += batch * stride_vb + head * stride_vh
    O_ptr += batch * stride_ob + head * stride_oh
    L_ptr += batch_head * N_QUERIES
    k_ptrs = K_ptr + columns[:, None] * stride_kk + dims[None, :] * stride_kd
    v_ptrs = V_ptr + columns[:, None] * stride_vk + dims[None, :] * stride_vd

    row_mask = (rows < N_QUERIES)[:, None] & (dims < D)[None, :]
    q = tl.load(Q_ptr + row_offsets * stride_qq + dims[None, :] * stride_qd, mask=row_mask, other=0.0)
    acc = tl.zeros((Q_TILE_SIZE, D_PADDED), dtype=tl.float32)
    row_sum = tl.zeros((Q_TILE_SIZE,), dtype=tl.float32)
    row_max = tl.full((Q_TILE_SIZE,), float("-inf"), dtype=tl.float32)

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
        # Tile 0 holds key 0, which every row sees: row_max is finite from here on, so no inf - inf.
        scores = tl.where(visible, scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, 1))
        rescale = tl.exp2(row_max - new_max)
        p = tl.exp2(scores - new_max[:, None])
        row_sum = rescale * row_sum + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=INPUT_PRECISION)
        row_max = new_max
        k_ptrs += K_TILE_SIZE * stride_kk
        v_ptrs += K_TILE_SIZE * stride_vk

    out = (acc / row_sum[:, None]).to(O_ptr.dtype.element_ty)
    tl.store(O_ptr + row_offsets * stride_oq + dims[None, :] * stride_od, out, mask=row_mask)
    # Base 2 inside, natural outside: lse = ln(2) * log2(sum of 2^scores).
    tl.store(L_ptr + rows, (row_max + tl.log2(row_sum)) * LN_2, mask=rows < N_QUERIES)
