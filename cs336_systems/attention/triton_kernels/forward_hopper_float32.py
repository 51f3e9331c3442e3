"""The forward of `forward_hopper` for float32, over pieces (`pieces.py`).

One warp group loads; two, the consumers, compute 64 rows of out each, the one's softmax under the other's products.
Keys are visited from the last tile to the first, so that only the first one visited holds a mask.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from cs336_systems.attention.triton_kernels.forward_hopper import (
    LEAST_FLOAT32,
    LN_2,
    ROWS,
    last_key_tile,
    skip_tiles,
    tile_of_program,
)
from cs336_systems.attention.triton_kernels.hopper import at_head, mma, store_rows
from cs336_systems.attention.triton_kernels.pieces import (
    load_pieces,
    matrices,
    operands,
    pieces_of,
    product,
    scores_of,
    turned,
)

KEYS = gl.constexpr(64)  # of a tile


@gluon.jit
def load_tiles(
    q_desc, k_desc, v_desc, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
    N_QUERIES, N_KEYS, NUM_HEADS,
    HEADS_PER_KV_HEAD: gl.constexpr, STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """The loading warp group: q once, then rings of k and of v, from the last tile to the first."""
    q_start, batch, head = tile_of_program(N_QUERIES, NUM_HEADS, 2 * ROWS, IS_CAUSAL)
    kv_head = head // HEADS_PER_KV_HEAD
    for c in gl.static_range(2):
        load_pieces(q_desc, batch, head, q_start + c * ROWS, q_full.index(c), q_tiles, c, PIECES)
    last = last_key_tile(q_start, 2 * ROWS, N_KEYS, KEYS, IS_CAUSAL)
    for i in range(0, last + 1):
        slot = i % STAGES
        free = (i // STAGES) % 2 ^ 1  # a new barrier counts as passed in phase 1
        row = (last - i) * KEYS
        mbarrier.wait(k_empty.index(slot), free)
        load_pieces(k_desc, batch, kv_head, row, k_full.index(slot), k_tiles, slot, PIECES)
        mbarrier.wait(v_empty.index(slot), free)
        load_pieces(v_desc, batch, kv_head, row, v_full.index(slot), v_tiles, slot, PIECES)


@gluon.jit
def attend(
    O_ptr, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
    stride_ob, stride_oh, stride_oq, N_QUERIES, N_KEYS, NUM_HEADS, scale_log2,
    CONSUMER: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """A consumer: ROWS rows of out and lse."""
    s_layout: gl.constexpr = mma(KEYS)
    o_layout: gl.constexpr = mma(D)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_row_layout: gl.constexpr = gl.SliceLayout(1, o_layout)

    block_start, batch, head = tile_of_program(N_QUERIES, NUM_HEADS, 2 * ROWS, IS_CAUSAL)
    q_start = block_start + CONSUMER * ROWS
    block_last = last_key_tile(block_start, 2 * ROWS, N_KEYS, KEYS, IS_CAUSAL)
    last = last_key_tile(q_start, ROWS, N_KEYS, KEYS, IS_CAUSAL)
    rows = q_start + gl.arange(0, ROWS, layout=row_layout)
    row_sum = gl.zeros([ROWS], gl.float32, layout=row_layout)
    # The least finite number: after a tile of scores that are all -inf, -inf - -inf would be NaN.
    row_max = gl.full([ROWS], LEAST_FLOAT32, gl.float32, layout=row_layout)
    acc = gl.zeros([ROWS, D], gl.float32, layout=o_layout)
    q = matrices(q_tiles, CONSUMER, D, PIECES)

    skipped = block_last - last
    skip_tiles(skipped, k_full, k_empty, v_full, v_empty, STAGES)

    mbarrier.wait(q_full.index(CONSUMER), 0)
    for i in range(skipped, block_last + 1):
        slot = i % STAGES
        phase = (i // STAGES) % 2
        mbarrier.wait(k_full.index(slot), phase)
        scores = scores_of(q, turned(matrices(k_tiles, slot, D, PIECES)), KEYS) * scale_log2
        mbarrier.arrive(k_empty.index(slot), count=1)
        if i == skipped:  # the diagonal and the end of the keys
            keys = last * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(0, s_layout))
            seen = (keys < N_KEYS)[None, :]
            if IS_CAUSAL:
                seen = seen & (rows[:, None] >= keys[None, :])
            scores = gl.where(seen, scores, float("-inf"))
        new_max = gl.maximum(row_max, gl.max(scores, 1))
        p = gl.exp2(scores - new_max[:, None])
        rescale = gl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + gl.sum(p, 1)
        row_max = new_max
        pieces = operands(pieces_of(p, PIECES), D)
        mbarrier.wait(v_full.index(slot), phase)
        part = product(pieces, matrices(v_tiles, slot, D, PIECES), D)
        part = warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(v_empty.index(slot), count=1)
        acc = acc * gl.convert_layout(rescale, o_row_layout)[:, None] + part

    out = acc / gl.convert_layout(row_sum, o_row_layout)[:, None]
    store_rows(at_head(O_ptr, batch, head, stride_ob, stride_oh), out, stride_oq, q_start, N_QUERIES, D)
    lse = (row_max + gl.log2(row_sum)) * LN_2
    gl.store(L_ptr + (batch * NUM_HEADS + head).to(gl.int64) * N_QUERIES + rows, lse, mask=rows < N_QUERIES)


@gluon.jit(do_not_specialize=["NUM_HEADS"])
def flash_fwd_hopper_float32_kernel(
    q_desc, k_desc, v_desc, O_ptr, L_ptr, stride_ob, stride_oh, stride_oq, N_QUERIES, N_KEYS, NUM_HEADS, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr,
    PIECES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """One program computes 128 rows of out and lse (natural) for one head of one batch element.

    Descriptors are of pieces, in tiles of 64 x D. STAGES tiles of k and of v are in flight; REGISTERS are those of a
    consumer's thread.
    """
    dtype: gl.constexpr = q_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_tiles = gl.allocate_shared_memory(dtype, [2 * PIECES, 1, 1, ROWS, D], q_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES * PIECES, 1, 1, KEYS, D], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES * PIECES, 1, 1, KEYS, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for c in gl.static_range(2):
        mbarrier.init(q_full.index(c), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(k_full.index(s), count=1)
        mbarrier.init(v_full.index(s), count=1)
        mbarrier.init(k_empty.index(s), count=2)
        mbarrier.init(v_empty.index(s), count=2)
    fence_async_shared()

    gl.warp_specialize([
        (load_tiles, (
            q_desc, k_desc, v_desc, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
            N_QUERIES, N_KEYS, NUM_HEADS, HEADS_PER_KV_HEAD, STAGES, IS_CAUSAL, PIECES,
        )),
        (attend, (
            O_ptr, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
            stride_ob, stride_oh, stride_oq, N_QUERIES, N_KEYS, NUM_HEADS, scale_log2, 0, D, STAGES, IS_CAUSAL, PIECES,
        )),
        (attend, (
            O_ptr, L_ptr, q_tiles, k_tiles, v_tiles, q_full, k_full, k_empty, v_full, v_empty,
            stride_ob, stride_oh, stride_oq, N_QUERIES, N_KEYS, NUM_HEADS, scale_log2, 1, D, STAGES, IS_CAUSAL, PIECES,
        )),
    ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
