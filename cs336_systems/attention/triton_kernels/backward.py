"""FlashAttention-2, backward: Algorithm 2 of Dao (2023), as one pass over keys and one over queries.

Two passes compute the scores twice (7 products a tile instead of 5) and need no atomics: the gradients of two runs are
the same to the bit. `scale` is softmax_scale, for the gradients; `scale_log2` is softmax_scale * log2(e), for the
scores, which are in base 2 as in the forward.

Dropout multiplies p and dp by z, which is 0 or 1 / keep_probability: ds = p * (dp * z - delta). The kernels compute
keep_probability * ds = p * (dp if kept else 0 - keep_probability * delta), and divide dk, dv and dq once at the end.
"""

import triton
import triton.language as tl

from cs336_systems.attention.triton_kernels.backward_keys import dk_dv_of_tile
from cs336_systems.attention.triton_kernels.backward_queries import dq_of_tile
from cs336_systems.attention.triton_kernels.common import (
    Config,
    Dropout,
    Rows,
    Scale,
    delta_of_rows,
    head_of,
    load_rows,
    rows_at,
    tile_of_program,
)


@triton.jit
def flash_bwd_delta_kernel(
    O_ptr,
    dO_ptr,
    Delta_ptr,
    Sum_ptr,
    stride_ob,
    stride_oh,
    stride_oq,
    stride_dob,
    stride_doh,
    stride_doq,
    NUM_HEADS,
    N_QUERIES,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    STRIDE_UNIT: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr,
):
    """Compute delta of Q_TILE_SIZE rows; write zeros to a sum of dq, float32 and dense in memory, if there is one."""
    if Sum_ptr is not None:
        ZEROS: tl.constexpr = Q_TILE_SIZE * D_PADDED
        num_batch_heads = (tl.num_programs(0) // tl.cdiv(N_QUERIES, Q_TILE_SIZE)).to(tl.int64)
        elements = tl.program_id(0).to(tl.int64) * ZEROS + tl.arange(0, ZEROS)
        tl.store(Sum_ptr + elements, tl.zeros((ZEROS,), tl.float32), mask=elements < num_batch_heads * N_QUERIES * D)
    tile, batch_head = tile_of_program(tl.cdiv(N_QUERIES, Q_TILE_SIZE), False)
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS

    rows = tile * Q_TILE_SIZE + tl.arange(0, Q_TILE_SIZE)
    dims = tl.arange(0, D_PADDED)
    in_range = rows < N_QUERIES
    row_offsets = rows.to(tl.int64)[:, None]
    o_rows = rows_at(O_ptr, batch * stride_ob + head * stride_oh, stride_oh, stride_oq, STRIDE_UNIT)
    do_rows = rows_at(dO_ptr, batch * stride_dob + head * stride_doh, stride_doh, stride_doq, STRIDE_UNIT)
    out = load_rows(o_rows.ptr + row_offsets * o_rows.stride + dims[None, :], in_range, dims, D, True)
    do = load_rows(do_rows.ptr + row_offsets * do_rows.stride + dims[None, :], in_range, dims, D, True)
    tl.store(Delta_ptr + batch_head * N_QUERIES + rows, delta_of_rows(out, do), mask=in_range)


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
    stride_dob,
    stride_doh,
    stride_doq,
    stride_dkb,
    stride_dkh,
    stride_dkk,
    stride_dvb,
    stride_dvh,
    stride_dvk,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    scale,
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
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    ONE_LOOP: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Compute K_TILE_SIZE rows of dk and dv for one head of k and v of one batch element."""
    # torch.compile passes them as float64.
    scale, scale_log2 = tl.cast(scale, tl.float32), tl.cast(scale_log2, tl.float32)
    # The first key tile is the heaviest: all queries see it.
    tile, batch_head = tile_of_program(tl.cdiv(N_KEYS, K_TILE_SIZE), False)
    num_kv_heads = NUM_HEADS // HEADS_PER_KV_HEAD
    batch, kv_head = batch_head // num_kv_heads, batch_head % num_kv_heads
    first_head = kv_head * HEADS_PER_KV_HEAD
    dk_dv_of_tile(
        rows_at(Q_ptr, batch * stride_qb + first_head * stride_qh, stride_qh, stride_qq, STRIDE_UNIT),
        rows_at(K_ptr, batch * stride_kb + kv_head * stride_kh, stride_kh, stride_kk, STRIDE_UNIT),
        rows_at(V_ptr, batch * stride_vb + kv_head * stride_vh, stride_vh, stride_vk, STRIDE_UNIT), Rows(None, 0, 0),
        rows_at(dO_ptr, batch * stride_dob + first_head * stride_doh, stride_doh, stride_doq, STRIDE_UNIT),
        L_ptr, Delta_ptr,
        rows_at(dK_ptr, batch * stride_dkb + kv_head * stride_dkh, stride_dkh, stride_dkk, STRIDE_UNIT),
        rows_at(dV_ptr, batch * stride_dvb + kv_head * stride_dvh, stride_dvh, stride_dvk, STRIDE_UNIT),
        N_QUERIES, N_KEYS, Scale(scale, scale_log2), Dropout(Seed_ptr, drop_below, keep_probability),
        batch_head * HEADS_PER_KV_HEAD, tile * K_TILE_SIZE,
        Config(
            D, D_PADDED, Q_TILE_SIZE, K_TILE_SIZE, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS, ONE_LOOP, INPUT_PRECISION,
            HEADS_PER_KV_HEAD,
        ),
    )  # fmt: skip


@triton.jit
def flash_bwd_dq_kernel(
    Q_ptr,
    K_ptr,
    V_ptr,
    dO_ptr,
    L_ptr,
    Delta_ptr,
    dQ_ptr,
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
    stride_dob,
    stride_doh,
    stride_doq,
    stride_dqb,
    stride_dqh,
    stride_dqq,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    scale,
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
    ONE_LOOP: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Compute Q_TILE_SIZE rows of dq for one head of one batch element."""
    # torch.compile passes them as float64.
    scale, scale_log2 = tl.cast(scale, tl.float32), tl.cast(scale_log2, tl.float32)
    tile, batch_head = tile_of_program(tl.cdiv(N_QUERIES, Q_TILE_SIZE), IS_CAUSAL)
    batch, head = batch_head // NUM_HEADS, batch_head % NUM_HEADS
    kv_head = head // HEADS_PER_KV_HEAD
    dq_of_tile(
        rows_at(Q_ptr, batch * stride_qb + head * stride_qh, stride_qh, stride_qq, STRIDE_UNIT),
        rows_at(K_ptr, batch * stride_kb + kv_head * stride_kh, stride_kh, stride_kk, STRIDE_UNIT),
        rows_at(V_ptr, batch * stride_vb + kv_head * stride_vh, stride_vh, stride_vk, STRIDE_UNIT), Rows(None, 0, 0),
        rows_at(dO_ptr, batch * stride_dob + head * stride_doh, stride_doh, stride_doq, STRIDE_UNIT), L_ptr, Delta_ptr,
        rows_at(dQ_ptr, batch * stride_dqb + head * stride_dqh, stride_dqh, stride_dqq, STRIDE_UNIT),
        N_QUERIES, N_KEYS, Scale(scale, scale_log2), Dropout(Seed_ptr, drop_below, keep_probability),
        batch_head, tile * Q_TILE_SIZE,
        Config(
            D, D_PADDED, Q_TILE_SIZE, K_TILE_SIZE, IS_CAUSAL, True, EVEN_KEYS, ONE_LOOP, INPUT_PRECISION,
            HEADS_PER_KV_HEAD,
        ),
    )  # fmt: skip


@triton.jit
def flash_bwd_at_once_kernel(
    Q_ptr,
    K_ptr,
    V_ptr,
    O_ptr,
    dO_ptr,
    L_ptr,
    dQ_ptr,
    dK_ptr,
    dV_ptr,
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
    stride_dob,
    stride_doh,
    stride_doq,
    stride_dqb,
    stride_dqh,
    stride_dqq,
    stride_dkb,
    stride_dkh,
    stride_dkk,
    stride_dvb,
    stride_dvh,
    stride_dvk,
    NUM_HEADS,
    N_QUERIES,
    N_KEYS,
    scale,
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
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Compute K_TILE_SIZE rows of dk and dv, or Q_TILE_SIZE rows of dq, with delta from out.

    For grids that leave most of a GPU idle: the passes run side by side in one launch.
    """
    # torch.compile passes them as float64.
    scale, scale_log2 = tl.cast(scale, tl.float32), tl.cast(scale_log2, tl.float32)
    # Programs of a head of k and v: its tiles of keys, then the tiles of queries of each head that it serves.
    num_k_tiles, num_q_tiles = tl.cdiv(N_KEYS, K_TILE_SIZE), tl.cdiv(N_QUERIES, Q_TILE_SIZE)
    tile, kv_batch_head = tile_of_program(num_k_tiles + HEADS_PER_KV_HEAD * num_q_tiles, False)
    num_kv_heads = NUM_HEADS // HEADS_PER_KV_HEAD
    batch, kv_head = kv_batch_head // num_kv_heads, kv_batch_head % num_kv_heads
    first_head = kv_head * HEADS_PER_KV_HEAD
    first_q_head = kv_batch_head * HEADS_PER_KV_HEAD
    q_rows = rows_at(Q_ptr, batch * stride_qb + first_head * stride_qh, stride_qh, stride_qq, STRIDE_UNIT)
    o_rows = rows_at(O_ptr, batch * stride_ob + first_head * stride_oh, stride_oh, stride_oq, STRIDE_UNIT)
    do_rows = rows_at(dO_ptr, batch * stride_dob + first_head * stride_doh, stride_doh, stride_doq, STRIDE_UNIT)
    k_rows = rows_at(K_ptr, batch * stride_kb + kv_head * stride_kh, stride_kh, stride_kk, STRIDE_UNIT)
    v_rows = rows_at(V_ptr, batch * stride_vb + kv_head * stride_vh, stride_vh, stride_vk, STRIDE_UNIT)
    dq_rows = rows_at(dQ_ptr, batch * stride_dqb + first_head * stride_dqh, stride_dqh, stride_dqq, STRIDE_UNIT)
    dk_rows = rows_at(dK_ptr, batch * stride_dkb + kv_head * stride_dkh, stride_dkh, stride_dkk, STRIDE_UNIT)
    dv_rows = rows_at(dV_ptr, batch * stride_dvb + kv_head * stride_dvh, stride_dvh, stride_dvk, STRIDE_UNIT)
    if tile < num_k_tiles:  # the first one is the heaviest: all queries see it
        dk_dv_of_tile(
            q_rows, k_rows, v_rows, o_rows, do_rows, L_ptr, None, dk_rows, dv_rows,
            N_QUERIES, N_KEYS, Scale(scale, scale_log2), Dropout(Seed_ptr, drop_below, keep_probability),
            first_q_head, tile * K_TILE_SIZE,
            Config(
                D, D_PADDED, Q_TILE_SIZE, K_TILE_SIZE, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS, False, INPUT_PRECISION,
                HEADS_PER_KV_HEAD,
            ),
        )  # fmt: skip
    else:
        group = ((tile - num_k_tiles) // num_q_tiles).to(tl.int64)
        q_tile = (tile - num_k_tiles) % num_q_tiles
        if IS_CAUSAL:
            q_tile = num_q_tiles - 1 - q_tile  # the last one is the heaviest
        dq_of_tile(
            head_of(q_rows, group), k_rows, v_rows, head_of(o_rows, group), head_of(do_rows, group), L_ptr, None,
            head_of(dq_rows, group),
            N_QUERIES, N_KEYS, Scale(scale, scale_log2), Dropout(Seed_ptr, drop_below, keep_probability),
            first_q_head + group, q_tile * Q_TILE_SIZE,
            Config(
                D, D_PADDED, Q_TILE_SIZE, K_TILE_SIZE, IS_CAUSAL, EVEN_QUERIES, EVEN_KEYS, False, INPUT_PRECISION,
                HEADS_PER_KV_HEAD,
            ),
        )  # fmt: skip


@triton.jit
def flash_bwd_round_kernel(Sums_ptr, Out_ptr, NUMEL, scale, TILE_ELEMENTS: tl.constexpr):
    """Compute out = sums * scale in out's dtype from float32 `sums` with the same strides, for the Gluon backward."""
    scale = tl.cast(scale, tl.float32)
    offsets = tl.program_id(0).to(tl.int64) * TILE_ELEMENTS + tl.arange(0, TILE_ELEMENTS)
    sums = tl.load(Sums_ptr + offsets, mask=offsets < NUMEL)
    tl.store(Out_ptr + offsets, (sums * scale).to(Out_ptr.dtype.element_ty), mask=offsets < NUMEL)
