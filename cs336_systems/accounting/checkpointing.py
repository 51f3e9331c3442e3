"""Gradient checkpointing of N equal blocks: memory against blocks computed again.

R is what a block keeps for its backward and a, much less, its input. Source: the course (Spring 2026,
gradient_checkpointing); Chen et al. 2016.
"""

import math
from typing import Literal

Nesting = Literal["none", "single", "binary", "left"]
"""single: each block is a checkpoint. binary: each half of the rest is. left: f_k = block_k(checkpoint(f_{k-1}))."""


def segment_peak_bytes(num_blocks: int, block_bytes: float, input_bytes: float, segment: int) -> float:
    """(N/k) a + k R: inputs of all segments of k blocks, and one segment's activations."""
    return num_blocks / segment * input_bytes + segment * block_bytes


def best_segment(num_blocks: int, block_bytes: float, input_bytes: float) -> int:
    """The whole number of blocks next to sqrt(N a/R) with the least `segment_peak_bytes`, at least 1."""
    ideal = math.sqrt(num_blocks * input_bytes / block_bytes)
    around = {max(1, math.floor(ideal)), max(1, math.ceil(ideal))}
    return min(around, key=lambda segment: segment_peak_bytes(num_blocks, block_bytes, input_bytes, segment))


def block_forwards(num_blocks: int, nesting: Nesting) -> int:
    """Blocks computed forward in a step, N a power of two for binary: N, 2N, N log2 N or N(N + 1)/2."""
    return {
        "none": num_blocks,
        "single": 2 * num_blocks,
        "binary": num_blocks * num_blocks.bit_length() - num_blocks,
        "left": num_blocks * (num_blocks + 1) // 2,
    }[nesting]
