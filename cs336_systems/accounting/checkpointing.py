"""Gradient checkpointing of N equal blocks: memory against recomputed blocks.

R is the number of bytes that a block keeps for its backward; a, much smaller, is the size of its input. Source: the
course (Spring 2026, gradient_checkpointing); Chen et al. 2016. The first three are the course's answers, which
recompute every group; the others are of `cs336_systems.checkpointing`, whose last group is not recomputed. Exact
peaks: `peak`.
"""

import math
from typing import Literal, get_args

from cs336_systems.checks import require_one_of
from cs336_systems.configs import Checkpointing

Nesting = Literal["none", "single", "binary", "left"]
"""single: checkpoint each block. binary: checkpoint halves recursively. left: f_k = block_k(checkpoint(f_{k-1}))."""


def segment_peak_bytes(num_blocks: int, block_bytes: float, input_bytes: float, segment: int) -> float:
    """Peak with segments of k blocks: (N/k) a + k R, for the inputs of all segments and one segment's activations."""
    return num_blocks / segment * input_bytes + segment * block_bytes


def best_segment(num_blocks: int, block_bytes: float, input_bytes: float) -> int:
    """Number of blocks, from 1 to N, next to sqrt(N a/R) that minimizes `segment_peak_bytes`."""
    ideal = math.sqrt(num_blocks * input_bytes / block_bytes)
    around = {max(1, min(segment, num_blocks)) for segment in (math.floor(ideal), math.ceil(ideal))}
    return min(around, key=lambda segment: segment_peak_bytes(num_blocks, block_bytes, input_bytes, segment))


def block_forwards(num_blocks: int, nesting: Nesting) -> int:
    """Forwards of blocks in a step: N, 2N, N/2 (log2 N + 3) for N = 2, 4, 8, ... (binary), or N(N + 1)/2.

    binary: of an odd number of blocks the first half is the smaller one, and a single block has no checkpoint.
    """
    require_one_of(get_args(Nesting), nesting=nesting)
    half = num_blocks // 2
    return {
        "none": num_blocks,
        "single": 2 * num_blocks,
        "binary": num_blocks + (_added_by_half(half) + _added_by_half(num_blocks - half) if half else 0),
        "left": num_blocks * (num_blocks + 1) // 2,
    }[nesting]


def _added_by_half(num_blocks: int) -> int:
    """Block forwards in the backward of a checkpoint around halves of halves.

    The recomputation ends at the input of the second half, the last tensor that it needs: both are checkpoints.
    """
    if num_blocks == 1:
        return 1
    half = num_blocks // 2
    return half + _added_by_half(half) + _added_by_half(num_blocks - half)


def last_group(num_blocks: int, checkpointing: Checkpointing | None) -> int:
    """Blocks in the last group, which keeps all of its activations: N without checkpoints, else 1 to k, 0 if N is."""
    if checkpointing is None or num_blocks == 0:
        return num_blocks
    return (num_blocks - 1) % checkpointing.every + 1


def recomputed_blocks(num_blocks: int, checkpointing: Checkpointing | None) -> int:
    """Block forwards that a step adds: all but the last group's; nested k G(G - 1)/2 for G groups of k.

    nested with k = 1 adds N(N - 1)/2 to the first N: `block_forwards(N, "left")` altogether.
    """
    earlier = num_blocks - last_group(num_blocks, checkpointing)
    if checkpointing is None or checkpointing.mode != "nested":
        return earlier
    return earlier * (earlier // checkpointing.every + 1) // 2


def recomputations(num_blocks: int, checkpointing: Checkpointing | None) -> int:
    """Number of recomputations in a step: one for each group but the last."""
    every = checkpointing.every if checkpointing else max(num_blocks, 1)
    return (num_blocks - last_group(num_blocks, checkpointing)) // every
