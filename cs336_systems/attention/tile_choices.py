"""Which tiles each kernel of FlashAttention takes, by head dimension, dtype and what the GPU's memory holds."""

import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor


class Tiles(NamedTuple):
    """Rows of q and of k in a tile, and how the kernel is compiled for them."""

    q: int
    k: int
    num_warps: int
    num_stages: int


# By padded head dimension: (bfloat16 and float16, float32). Chosen by what triton 3.7 makes of them for sm_90: at most
# the 227 KiB of shared memory of a multiprocessor, no serialized wgmma (but dk, dv of halves at 16), and no spills
# but those noted, as (causal, full). They fit into 8.0 and 10.0 too.
FORWARD_TILES = {
    16: (Tiles(128, 64, 4, 3), Tiles(64, 64, 4, 3)),
    32: (Tiles(128, 64, 4, 3), Tiles(64, 64, 4, 3)),
    64: (Tiles(128, 64, 4, 3), Tiles(64, 32, 4, 3)),
    128: (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 2)),  # float32: (7, 7)
}
DKDV_TILES = {
    16: (Tiles(64, 64, 4, 3), Tiles(32, 64, 4, 2)),
    32: (Tiles(64, 64, 4, 3), Tiles(32, 64, 4, 2)),
    64: (Tiles(64, 128, 8, 3), Tiles(32, 128, 8, 2)),
    128: (Tiles(64, 128, 8, 2), Tiles(32, 32, 8, 2)),  # (14, 2); float32: (36, 15), and 191 at 32 x 64
}
DQ_TILES = {
    16: (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2)),
    32: (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2)),
    64: (Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 2)),
    128: (Tiles(128, 64, 8, 3), Tiles(64, 32, 8, 2)),  # float32: (31, 31)
}
# What takes their place where a block has less than 160 KiB of shared memory: 99 in 8.6, 8.9 and 12.0. Not tuned.
SMALLER_TILES = {
    Tiles(128, 64, 8, 3): Tiles(128, 64, 8, 2),
    Tiles(64, 128, 8, 2): Tiles(64, 64, 8, 2),
    Tiles(128, 32, 8, 2): Tiles(64, 32, 8, 2),
    Tiles(64, 32, 8, 2): Tiles(32, 32, 8, 2),
    Tiles(32, 128, 8, 2): Tiles(32, 64, 4, 2),
}
MUCH_SHARED_BYTES = 160 * 2**10


def tiles_for(q: Tensor, table: dict[int, tuple[Tiles, Tiles]]) -> Tiles:
    """A table's choice for q's head dimension, dtype and device."""
    half, single = table[padded_head_dim(q)]
    tiles = single if q.dtype == torch.float32 else half
    return tiles if shared_bytes(q.device) >= MUCH_SHARED_BYTES else SMALLER_TILES.get(tiles, tiles)


@torch.compiler.assume_constant_result
def shared_bytes(device: torch.device) -> int:
    """Of a block at most; Triton's interpreter knows no limit."""
    return _shared_bytes_of_gpu(device) if device.type == "cuda" else MUCH_SHARED_BYTES


@functools.cache
def _shared_bytes_of_gpu(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", MUCH_SHARED_BYTES))


def padded_head_dim(q: Tensor) -> int:
    """Tiles are powers of two."""
    return triton.next_power_of_2(q.shape[-1])
