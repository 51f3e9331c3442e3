"""The forward for float32, over pieces (`pieces.py`).

Each consumer computes 64 rows of out. Of two in a program, the softmax of one runs under the products of the other; one
alone has the tensor core to itself. As in `forward`, keys are visited from the last tile to the first, so only the
first tile visited holds a mask.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from cs336_systems.attention.constants import WGMMA_ROWS
from cs336_systems.attention.gluon_kernels.forward import (
    MIN_FLOAT32,
    Config,
    Task,
    allocate,
    last_key_tile,
    load_tiles,
    skip_tiles,
    store_lse,
)
from cs336_systems.attention.gluon_kernels.order import tile_at, turns_of
from cs336_systems.attention.gluon_kernels.pieces import matrices, operands, pieces_of, product, scores_of, transposed
from cs336_systems.attention.gluon_kernels.scaffold import ROWS, Rows, Sizes, at_head, mma, store_rows

KEYS = gl.constexpr(WGMMA_ROWS)  # of a tile


@gluon.jit
def attend(CONSUMER: gl.constexpr, task):
    """Compute ROWS rows of out and lse of each tile in one consumer."""
    visited = 0  # tiles of keys before
    for turn in range(0, turns_of(task.sizes, ROWS * task.config.CONSUMERS)):
        visited = attend_tile(CONSUMER, task, turn, visited)


@gluon.jit
def attend_tile(CONSUMER: gl.constexpr, task, turn, visited):
    """Compute ROWS rows of out and lse; return the tiles of keys that the rings have held until then."""
    memory, sizes = task.memory, task.sizes
    D: gl.constexpr = task.config.D
    STAGES: gl.constexpr = task.config.STAGES
    IS_CAUSAL: gl.constexpr = task.config.IS_CAUSAL
    PIECES: gl.constexpr = task.config.PIECES
    BLOCK_ROWS: gl.constexpr = ROWS * task.config.CONSUMERS
    s_layout: gl.constexpr = mma(KEYS)
    o_layout: gl.constexpr = mma(D)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_row_layout: gl.constexpr = gl.SliceLayout(1, o_layout)
    k_ring, v_ring = memory.k, memory.v

    block_start, batch, head = tile_at(turn, sizes, BLOCK_ROWS, IS_CAUSAL)
    q_start = block_start + CONSUMER * ROWS
    block_last = last_key_tile(block_start, BLOCK_ROWS, sizes.keys, KEYS, IS_CAUSAL)
    last = last_key_tile(q_start, ROWS, sizes.keys, KEYS, IS_CAUSAL)
    rows = q_start + gl.arange(0, ROWS, layout=row_layout)
    row_sum = gl.zeros([ROWS], gl.float32, layout=row_layout)
    row_max = gl.full([ROWS], MIN_FLOAT32, gl.float32, layout=row_layout)
    acc = gl.zeros([ROWS, D], gl.float32, layout=o_layout)
    q = matrices(memory.q.tiles, CONSUMER, D, PIECES)

    first = visited + block_last - last
    end = visited + block_last + 1
    skip_tiles(visited, first, k_ring, v_ring, STAGES)

    mbarrier.wait(memory.q.full.index(CONSUMER), turn % 2)
    for i in range(first, end):
        slot = i % STAGES
        phase = (i // STAGES) % 2
        mbarrier.wait(k_ring.full.index(slot), phase)
        scores = scores_of(q, transposed(matrices(k_ring.tiles, slot, D, PIECES)), KEYS) * task.scale_log2
        mbarrier.arrive(k_ring.empty.index(slot), count=1)
        if i == first:  # the diagonal and the end of the keys
            keys = last * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(0, s_layout))
            seen = (keys < sizes.keys)[None, :]
            if IS_CAUSAL:
                seen = seen & (rows[:, None] >= keys[None, :])
            scores = gl.where(seen, scores, float("-inf"))
        new_max = gl.maximum(row_max, gl.max(scores, 1))
        p = gl.exp2(scores - new_max[:, None])
        rescale = gl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + gl.sum(p, 1)
        row_max = new_max
        pieces = operands(pieces_of(p, PIECES), D)
        mbarrier.wait(v_ring.full.index(slot), phase)
        part = product(pieces, matrices(v_ring.tiles, slot, D, PIECES), D)
        part = warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(v_ring.empty.index(slot), count=1)
        acc = acc * gl.convert_layout(rescale, o_row_layout)[:, None] + part

    mbarrier.arrive(memory.q.empty.index(CONSUMER), count=1)
    out = acc / gl.convert_layout(row_sum, o_row_layout)[:, None]
    store_rows(at_head(task.out, batch, head), out, task.out.stride, q_start, sizes.queries, task.config.HEAD_DIM, D)
    store_lse(task.lse_ptr, row_max, row_sum, batch, head, rows, sizes)
    return end


@gluon.jit(do_not_specialize=["NUM_HEADS", "ALL_HEADS", "HEADS_AT_ONCE"])
def flash_fwd_hopper_float32_kernel(
    q_desc, k_desc, v_desc, O_ptr, L_ptr, stride_ob, stride_oh, stride_oq,
    N_QUERIES, N_KEYS, NUM_HEADS, ALL_HEADS, HEADS_AT_ONCE, scale_log2,
    HEADS_PER_KV_HEAD: gl.constexpr, HEAD_DIM: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr, IS_CAUSAL: gl.constexpr, PIECES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute out and lse (natural) in tiles of 64 * CONSUMERS rows of a head, as many at once as programs.

    Descriptors are of pieces, in tiles of 64 x D. STAGES tiles of k and of v are in flight; CONSUMERS is 1 or 2,
    REGISTERS are those of a consumer's thread.
    """
    memory = allocate(q_desc, k_desc, v_desc, STAGES, 1, CONSUMERS, PIECES, False)
    specialize(
        (
            q_desc, k_desc, v_desc, memory, Sizes(N_QUERIES, N_KEYS, NUM_HEADS, ALL_HEADS, HEADS_AT_ONCE),
            Config(HEAD_DIM, D, KEYS, STAGES, 1, CONSUMERS, IS_CAUSAL, PIECES, HEADS_PER_KV_HEAD, False, False, False,
                   False),
        ),
        Task(
            Rows(O_ptr, stride_ob, stride_oh, stride_oq), L_ptr, memory,
            Sizes(N_QUERIES, N_KEYS, NUM_HEADS, ALL_HEADS, HEADS_AT_ONCE), scale_log2,
            Config(HEAD_DIM, D, KEYS, STAGES, 1, CONSUMERS, IS_CAUSAL, PIECES, HEADS_PER_KV_HEAD, False, False, False,
                   False),
        ),
        CONSUMERS, REGISTERS,
    )  # fmt: skip


@gluon.jit
def specialize(load, task, CONSUMERS: gl.constexpr, REGISTERS: gl.constexpr):
    """Run `load_tiles(*load)` in one warp group, and `attend(consumer, task)` in each of 1 or 2 others."""
    if CONSUMERS == 1:
        gl.warp_specialize([(load_tiles, load), (attend, (0, task))], [4], [REGISTERS])
    else:
        gl.warp_specialize(
            [(load_tiles, load), (attend, (0, task)), (attend, (1, task))], [4, 4], [REGISTERS, REGISTERS]
        )
