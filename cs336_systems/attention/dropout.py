"""Dropout of attention: which probabilities a call drops, as a function of its seed and of each one's place.

Nothing of size n x n is kept: the backward computes the same words again. The place is absolute (head, row, column),
so that the mask knows neither the tiles nor the implementation; `triton_kernels/dropout.py` is this in Triton.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Of Philox4x32: the fewest that pass BigCrush (Salmon et al. 2011, table 2), and what FlashAttention-2's CUDA takes.
PHILOX_ROUNDS = 7

_WORD = 0xFFFFFFFF


class Dropout(NamedTuple):
    """Of one call: `p`, from 0 up to 1, is the probability to be dropped; `seed` is (1,), int64, on q's device."""

    p: float
    seed: Tensor

    @property
    def keep_probability(self) -> float:
        """What is kept is divided by it, so that the expected output is that without dropout."""
        return 1.0 - self.p

    @property
    def drop_below(self) -> int:
        """A random word, read as a signed 32-bit integer, drops if it is less than this."""
        return min(round(self.p * 2**32), _WORD) - 2**31


def new_seed(device: torch.device | str) -> Tensor:
    """(1,), int64, from torch's generator of the device: `torch.manual_seed` repeats it, a CUDA graph draws anew."""
    # 31 bits, although Philox takes 64: a larger bound is cast to int32 by torch 2.11's compiler. Of 65536 calls two
    # are expected to drop alike, at other steps and in other layers.
    return torch.randint(2**31 - 1, (1,), device=device)


def dropout_of_call(p: float, seed: Tensor | None, device: torch.device) -> Dropout | None:
    """None if `p` is 0, which draws nothing; else with a new seed unless one is given."""
    if p == 0:
        return None
    return Dropout(p, new_seed(device) if seed is None else seed)


def keep_mask(dropout: Dropout, leading: Sequence[int], rows: range, columns: range) -> Tensor:
    """Which probabilities of a tile stay, True with probability 1 - p.

    Args:
        dropout: the call's.
        leading: q's dimensions before its last two; the place of a head is its index over all of them.
        rows: the tile's queries, range(seq_len_q) for all of them; begins at a multiple of 16.
        columns: the tile's keys, likewise.

    Returns:
        (*leading, len(rows), len(columns)), bool, on the seed's device.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011): counter-based Philox4x32.
    """
    assert rows.start % 16 == columns.start % 16 == 0 and rows.step == columns.step == 1
    # Four words come at once. They go to rows i and i + 8 at columns j and j + 8 of each 16 x 16, where the kernels
    # find all four in one thread.
    row_blocks, column_blocks = (-(-len(tile) // 16) for tile in (rows, columns))
    heads = torch.arange(torch.Size(leading).numel(), device=dropout.seed.device)
    row_quads = rows.start // 2 + torch.arange(8 * row_blocks, device=dropout.seed.device)
    column_quads = columns.start // 2 + torch.arange(8 * column_blocks, device=dropout.seed.device)
    words = _philox(column_quads, row_quads[:, None], heads[:, None, None], torch.zeros_like(heads[:1]), dropout.seed)
    quads = torch.stack(words, -1).reshape(-1, row_blocks, 8, column_blocks, 8, 2, 2)
    tile = quads.permute(0, 1, 5, 2, 3, 6, 4).reshape(*leading, 16 * row_blocks, 16 * column_blocks)
    return tile[..., : len(rows), : len(columns)].to(torch.int32) >= dropout.drop_below


def _philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32 of a counter of four words and a key of two, all held in int64."""
    k0, k1 = key & _WORD, key >> 32 & _WORD
    for _ in range(PHILOX_ROUNDS):
        # 64 bits each: int64 wraps around and keeps them all.
        product0, product2 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (product2 >> 32 & _WORD) ^ c1 ^ k0,
            product2 & _WORD,
            (product0 >> 32 & _WORD) ^ c3 ^ k1,
            product0 & _WORD,
        )
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return c0, c1, c2, c3
