"""Choice of the kernels in Gluon by head dimension, dtype, lengths and GPU; the Triton kernels take all other calls."""

import torch
from torch import Tensor

from cs336_systems.attention import gpu
from cs336_systems.attention.balance import equal_groups
from cs336_systems.attention.constants import WGMMA_ROWS
from cs336_systems.attention.hopper_tables import (
    HOPPER_BACKWARD,
    HOPPER_FLOAT32,
    HOPPER_FORWARD,
    HOPPER_FORWARD_FEW,
    HOPPER_FORWARD_LONG,
    HOPPER_FORWARD_MANY,
    HOPPER_FORWARD_PING_PONG,
    PIECES,
    HopperBackward,
    HopperFloat32,
    HopperForward,
)
from cs336_systems.attention.launch import cdiv, num_tiles
from cs336_systems.attention.request import Request
from cs336_systems.attention.tiles import has_few_scores, padded_head_dim, split_keys, tiles_at_once

HOPPER_MAX_HEAD_DIM = 128

HOPPER_ROWS = 128
"""Rows of q or k in most programs, and the minimum of both."""

HOPPER_MANY = 2

HOPPER_MAX_WASTE = 1.05
"""Maximum rows in the tiles of HOPPER_FORWARD_MANY by those in tiles of HOPPER_ROWS."""

HOPPER_LONG_KEYS, HOPPER_LONG_ODD_KEYS = 8192, 2048
"""Minimum keys of HOPPER_FORWARD_LONG, and where a length is no multiple of 16."""

HOPPER_MIN_KEYS, HOPPER_MIN_ODD_KEYS = 512, 480
"""Minimum keys of a 16-bit forward with tiles of 64 columns, and where a length is no multiple of 16."""

HOPPER_NARROW_HEAD_DIM = 32
"""The largest head dimension that leaves half the columns of a 16-bit tile, or more, to zeros. There the Triton
kernels take less time (H200), but in the calls that the next limits describe: first forward, then backward."""

HOPPER_NARROW_KEYS, HOPPER_NARROW_TILES = 2048, 4
"""Minimum keys, and maximum tiles of WGMMA_ROWS rows a multiprocessor."""

HOPPER_NARROW_BACKWARD_KEYS, HOPPER_NARROW_BACKWARD_TILES = (4096, 16384), {16: 2, 32: 4}
"""The least and most keys, and maximum tiles by padded head dimension."""

HOPPER_SPLIT_SHARE = 0.5
"""Maximum tiles of WGMMA_ROWS rows a multiprocessor for the Triton kernel to split the keys instead."""

HOPPER_SPLIT_CAUSAL_KEYS = {64: 2048, 128: 4096}
"""Minimum keys, by columns of a tile, to split the keys of a causal call with up to one tile a multiprocessor."""

HOPPER_FEW = 20
"""With fewer backward programs a multiprocessor than this, the order of heads balances them before it saves loads."""

HOPPER_SHARING = 12
"""Programs that then work on a head at the same time, so that most loads of its queries are hits of the L2 cache."""

HOPPER_SHARED = 40
"""With fewer backward programs a multiprocessor than this, several share the query heads of a key tile."""

HOPPER_FILLED = 0.75
"""Without a mask and with more key tiles a multiprocessor than this, no programs share one: all tiles take the same
time, and sharing would only add to it."""

HOPPER_FEWEST = 3
"""With fewer than this, although they share, each of them visits one query head alone, or a part of its queries."""

HOPPER_VISITS, HOPPER_FLOAT32_VISITS = (4, 8), (2, 2)
"""Minimum visits of a program, of 64 queries each, for a key tile's queries to be shared; and how many take the time in
which a program adds dk and dv in memory (H100). A visit in float32 has six times the products."""

HOPPER_FLOAT32_ALONE = {16: (1, 2), 32: (1, 2), 64: (1, 2), 128: (1, 8)}
"""By columns of a tile, full and causal: maximum tiles of WGMMA_ROWS rows a multiprocessor for a float32 consumer alone
in a program."""

HOPPER_FLOAT32_PLAIN = {64: {False: 256, True: 256}, 128: {False: 320, True: 384}}
"""By columns of a tile and whether causal, the maximum keys of float32 forwards that take less time without pieces, if
they have more than HOPPER_FLOAT32_PLAIN_TILES tiles of WGMMA_ROWS rows a multiprocessor."""

HOPPER_FLOAT32_PLAIN_TILES = 1.5

HOPPER_FLOAT32_SHORT = {32: (4096, 2), 64: (512, 0.75)}
"""By columns of a tile: a float32 forward of fewer keys, and at most so many tiles of 16 rows a multiprocessor, takes
less time in those."""

HOPPER_FLOAT32_NARROW_TILES = 4
"""Maximum tiles of WGMMA_ROWS rows a multiprocessor of a float32 forward with 16 columns."""

WIDE_HEAD_DIM = 96
"""The largest head dimension for which the Gluon kernels compute 64 columns and a rest, and the Triton kernels 128."""

HOPPER_BUSY = {True: 0.48, False: 0.75}
"""By whether the Gluon kernels compute fewer columns: programs a multiprocessor with which a 16-bit backward of more
than 64 columns takes less time in them, however few the scores."""

HOPPER_FLOAT32_MIN_VISITED = 128
"""Minimum rows that a float32 program visits, whatever the number of programs."""


def hopper_forward(request: Request, q: Tensor, k: Tensor, v: Tensor) -> HopperForward | None:
    """Return choices of the 16-bit forward in Gluon, or None if a Triton kernel has to run."""
    if not _takes_16_bit(request, q, k, v) or request.scale is None or request.scale <= 0:
        return None
    if _is_narrow(q) and not _takes_narrow_forward(request, q, k):
        return None
    columns, processors = tile_columns(q), gpu.multiprocessors(q.device)
    if columns == 64 and k.shape[2] < (HOPPER_MIN_ODD_KEYS if _is_odd(q, k) else HOPPER_MIN_KEYS):
        return None
    for table in _tables_of_many(q, k):
        choice = table.get(columns)
        if choice and num_tiles(q, choice.rows) >= HOPPER_MANY * processors:
            return choice
    if _splits_keys(request, q, k):
        return None
    for most, choice in HOPPER_FORWARD_FEW[columns, request.is_causal].items():
        if num_tiles(q, WGMMA_ROWS) <= most * processors:
            return choice
    in_turns = columns > 64 and (q.shape[-1] <= WIDE_HEAD_DIM or (request.is_causal and _is_odd(q, k)))
    return (HOPPER_FORWARD_PING_PONG if in_turns else HOPPER_FORWARD)[columns]


def _is_narrow(q: Tensor) -> bool:
    """Whether the Triton kernels, without columns of zeros, take less time in most 16-bit calls.

    They load head vectors whose size is no multiple of 16 slowly.
    """
    return q.shape[-1] <= HOPPER_NARROW_HEAD_DIM and q.shape[-1] % 16 == 0


def _takes_narrow_forward(request: Request, q: Tensor, k: Tensor) -> bool:
    """Whether a narrow 16-bit forward takes less time in Gluon."""
    are_few = num_tiles(q, WGMMA_ROWS) <= HOPPER_NARROW_TILES * gpu.multiprocessors(q.device)
    return are_few and k.shape[2] >= HOPPER_NARROW_KEYS and split_keys(request, q, k) is None


def _takes_narrow_backward(q: Tensor, k: Tensor) -> bool:
    """Whether a narrow 16-bit backward takes less time in Gluon."""
    least, most = HOPPER_NARROW_BACKWARD_KEYS
    tiles = HOPPER_NARROW_BACKWARD_TILES[padded_head_dim(q)] * gpu.multiprocessors(q.device)
    return least <= k.shape[2] <= most and num_tiles(k, WGMMA_ROWS) <= tiles


def _tables_of_many(q: Tensor, k: Tensor) -> tuple[dict[int, HopperForward], ...]:
    """Return the tables for many tiles that suit these lengths, the first choice first."""
    if k.shape[2] >= (HOPPER_LONG_ODD_KEYS if _is_odd(q, k) else HOPPER_LONG_KEYS):
        return HOPPER_FORWARD_LONG, HOPPER_FORWARD_MANY
    rows = {tile: cdiv(q.shape[2], tile) * tile for tile in (HOPPER_ROWS, HOPPER_FORWARD_MANY[64].rows)}
    return (HOPPER_FORWARD_MANY,) if rows[max(rows)] <= HOPPER_MAX_WASTE * rows[HOPPER_ROWS] else ()


def _is_odd(q: Tensor, k: Tensor) -> bool:
    """Whether a length is no multiple of 16.

    Triton compiles these apart. The products and the softmax are the same, but ptxas orders them otherwise: which way
    of running them is the fastest depends on it (H200, triton 3.6).
    """
    return q.shape[2] % 16 > 0 or k.shape[2] % 16 > 0


def _splits_keys(request: Request, q: Tensor, k: Tensor) -> bool:
    """Whether the Triton kernel for parts of the keys takes less time than a Gluon kernel with so few tiles."""
    is_long_causal = request.is_causal and k.shape[2] >= HOPPER_SPLIT_CAUSAL_KEYS[tile_columns(q)]
    are_fewer = num_tiles(q, WGMMA_ROWS) <= HOPPER_SPLIT_SHARE * gpu.multiprocessors(q.device)
    return split_keys(request, q, k) is not None and (is_long_causal or are_fewer)


def hopper_backward(request: Request, q: Tensor, k: Tensor, v: Tensor) -> HopperBackward | None:
    """Return choices of the 16-bit backward in Gluon, or None. It adds dq, and dk and dv if split, in any order."""
    if not _takes_16_bit(request, q, k, v) or request.deterministic:
        return None
    d = q.shape[-1]
    share = HOPPER_BUSY[d <= WIDE_HEAD_DIM]
    is_busy = d > 64 and num_tiles(k, HOPPER_ROWS) >= share * gpu.multiprocessors(q.device)
    if _is_narrow(q) and not _takes_narrow_backward(q, k):
        return None
    if not _is_narrow(q) and not is_busy and has_few_scores(q, k) and tiles_at_once(q, k):
        return None
    return HOPPER_BACKWARD[tile_columns(q)]._replace(splits=backward_splits(request, q, k))


def backward_splits(request: Request, q: Tensor, k: Tensor) -> int:
    """Return how many programs share the visits of a key tile in a 16-bit backward.

    Where programs are few, one that visits all query heads of a key head takes a large part of the whole time. One that
    visits a single head loads keys, and adds to dk and dv, for little work: it is for the fewest programs.
    """
    group, tiles, processors = q.shape[1] // k.shape[1], num_tiles(k, HOPPER_ROWS), gpu.multiprocessors(q.device)
    if not request.is_causal and tiles > HOPPER_FILLED * processors:
        return 1
    divisors = [splits for splits in range(1, max(1, group // 2) + 1) if group % splits == 0]
    splits = next((splits for splits in divisors if splits * tiles >= HOPPER_SHARED * processors), divisors[-1])
    if splits * tiles >= HOPPER_FEWEST * processors:
        return splits
    return max(group, _splits_that_fill(request, q, k, HOPPER_ROWS, HOPPER_VISITS))


def _splits_that_fill(request: Request, q: Tensor, k: Tensor, rows: int, visits_of: tuple[int, int]) -> int:
    """Return how many programs to a tile of so many keys take the least time: 1, or as many as keep the GPU busy.

    The programs of a causal head differ in work, and a multiprocessor with two ends no later than others. All add dk
    and dv to memory at about the same time, so that what this takes grows with the programs of a multiprocessor.
    """
    tiles, processors = num_tiles(k, rows), gpu.multiprocessors(q.device)
    min_visits, addition = visits_of
    visits = q.shape[1] // k.shape[1] * cdiv(q.shape[2], WGMMA_ROWS)
    filling = round(2 * processors / tiles) if request.is_causal else processors // tiles
    splits = min(filling, visits // min_visits)
    if splits < 2:
        return 1
    longest = visits / splits
    mean = longest / 2 if request.is_causal else longest
    shared = max(longest + addition, tiles * splits / processors * (mean + addition))
    return splits if shared < visits else 1


def backward_heads_at_once(request: Request, q: Tensor, k: Tensor, splits: int = 1) -> int:
    """Return of how many groups of query heads, one group a program, the backward visits the tiles together.

    The tiles of a causal head differ in work, and the more heads share one order the better it is balanced. But q, do
    and the sums of dq should stay in half the L2 cache. Where programs are few, a long one that starts late costs more
    than the cache saves: then groups are at least as many as leave each HOPPER_SHARING programs, which read the same
    queries at about the same time.
    """
    if not request.is_causal:
        return 1
    groups, processors = k.shape[1] * splits, gpu.multiprocessors(q.device)
    bytes_of_group = (2 * q.element_size() + 4) * q[0].numel() // groups
    fitting = gpu.l2_bytes(q.device) // 2 // bytes_of_group
    if splits * num_tiles(k, HOPPER_ROWS) < HOPPER_FEW * processors:
        fitting = max(fitting, processors // HOPPER_SHARING)
    return equal_groups(q.shape[0] * groups, max(1, fitting))


def hopper_float32_forward(request: Request, q: Tensor, k: Tensor) -> HopperFloat32 | None:
    """Return choices of the float32 forward in Gluon, or None."""
    columns, processors = tile_columns(q), gpu.multiprocessors(q.device)
    keys, few = HOPPER_FLOAT32_SHORT.get(columns, (0, 0))
    if k.shape[2] < keys and num_tiles(q, 16) <= few * processors:
        return None
    tiles = num_tiles(q, WGMMA_ROWS)
    if columns == 16 and tiles > HOPPER_FLOAT32_NARROW_TILES * processors:
        return None
    short = columns in HOPPER_FLOAT32_PLAIN and k.shape[2] <= HOPPER_FLOAT32_PLAIN[columns][request.is_causal]
    if short and tiles > HOPPER_FLOAT32_PLAIN_TILES * processors:
        return None
    choice = hopper_float32(request, q, k)
    return choice and choice._replace(consumers=float32_consumers(request, q))


def float32_consumers(request: Request, q: Tensor) -> int:
    """Return the consumers of a float32 forward's program: one where two would leave multiprocessors without work."""
    most = HOPPER_FLOAT32_ALONE[tile_columns(q)][request.is_causal] * gpu.multiprocessors(q.device)
    return 1 if num_tiles(q, WGMMA_ROWS) <= most else 2


def hopper_float32_backward(request: Request, q: Tensor, k: Tensor) -> HopperFloat32 | None:
    """Return choices of the float32 backward in Gluon, or None. It adds dq, and dk and dv if split, in any order."""
    choice = None if request.deterministic else hopper_float32(request, k, q)
    return choice and choice._replace(splits=float32_splits(request, q, k))


def float32_splits(request: Request, q: Tensor, k: Tensor) -> int:
    """Return how many programs share the visits of a key tile in a float32 backward."""
    return _splits_that_fill(request, q, k, WGMMA_ROWS, HOPPER_FLOAT32_VISITS)


def hopper_float32(request: Request, rows: Tensor, visited: Tensor) -> HopperFloat32 | None:
    """Return choices of a float32 kernel in Gluon, or None.

    A program holds some of the `rows`, q forward and k backward, and loops over the `visited`, k and q. Pieces of all
    inputs are allocated until the kernels end.
    """
    if rows.dtype != torch.float32 or not hopper_takes(request, rows) or rows.shape[2] < HOPPER_ROWS:
        return None
    if visited.shape[2] < HOPPER_FLOAT32_MIN_VISITED:
        return None
    return HOPPER_FLOAT32[tile_columns(rows), PIECES[request.products]]


def hopper_takes(request: Request, q: Tensor) -> bool:
    """Whether a Gluon kernel can take such a q at all, however long."""
    return q.shape[-1] <= HOPPER_MAX_HEAD_DIM and not request.dropout and gpu.runs_gluon(q.device)


def tile_columns(q: Tensor) -> int:
    """Return the columns of the Gluon kernels' tiles of head vectors: at least 16 in float32, 64 in 16 bits."""
    return padded_head_dim(q) if q.dtype == torch.float32 else columns_of_16_bits(q)


def columns_of_16_bits(q: Tensor) -> int:
    """Return the columns of the tiles of the kernels for 16 bits."""
    return max(64, padded_head_dim(q))


def _takes_16_bit(request: Request, q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the 16-bit kernels in Gluon can run, however fast."""
    is_large = min(q.shape[2], k.shape[2]) >= HOPPER_ROWS
    suit = q.shape[-1] % 8 == 0 and all(map(suits_tma, (q, k, v)))  # the rows of what is allocated have no padding
    return q.dtype != torch.float32 and hopper_takes(request, q) and is_large and suit


def suits_tma(x: Tensor) -> bool:
    """Whether the copy engine (TMA) can address x: strides in units of 16 bytes, no expanded dimension."""
    units = 16 // x.element_size()
    strides = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return (
        x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(stride > 0 and stride % units == 0 for stride in strides)
    )
