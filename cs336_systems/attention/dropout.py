"""Dropout of attention: a mask that is a function of the call's seed and of a probability's head, row and column.

No n x n mask is stored: the backward computes the same random words again. Since the position is absolute, the mask
depends on neither tiles nor implementation; `triton_kernels/dropout.py` computes it in Triton.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# The fewest rounds of Philox4x32 that pass BigCrush (Salmon et al. 2011, table 2), as in FlashAttention-2's CUDA code.
PHILOX_ROUNDS = 7

_WORD = 0xFFFFFFFF


class Dropout(NamedTuple):
    """Dropout of one call: `p`, in [0, 1), drops a probability; `seed` is (1,), int64, on q's device."""

    p: float
    seed: Tensor

    @property
    def keep_probability(self) -> float:
        """Divisor of kept probabilities, which makes the expected output that without dropout."""
        return 1.0 - self.p


def drop_below(p: float) -> int:
    """Return the bound under which a random word, read as a signed 32-bit integer, drops its probability."""
    return min(round(p * 2**32), _WORD) - 2**31


def new_seed(device: torch.device | str) -> Tensor:
    """Draw (1,), int64, from torch's generator of the device: `torch.manual_seed` repeats it, CUDA graphs redraw."""
    # 31 bits, although Philox takes 64, since torch 2.11's compiler casts a larger bound to int32. Among 65536 calls
    # one pair is expected to share its seed, at other steps and in other layers.
    return torch.randint(2**31 - 1, (1,), device=device)


def dropout_of_call(p: float, seed: Tensor | None, device: torch.device) -> Dropout | None:
    """Return the dropout of a call, with a new seed unless one is given; None if `p` is 0, which draws nothing."""
    seed = seed_of_call(p, seed, device)
    return None if seed is None else Dropout(p, seed)


def seed_of_call(p: float, seed: Tensor | None, device: torch.device) -> Tensor | None:
    """Return the seed of a call, a new one unless one is given; None if `p` is 0, which draws nothing."""
    if p == 0:
        return None
    if seed is None:
        return new_seed(device)
    if seed.shape != (1,) or seed.dtype != torch.int64 or seed.device != device:
        given = f"{tuple(seed.shape)}, {seed.dtype}, on {seed.device}"
        raise ValueError(f"dropout_seed is {given}; allowed: (1,), torch.int64, on {device}, as q")
    return seed


def keep_mask(dropout: Dropout, leading: Sequence[int], rows: range, columns: range) -> Tensor:
    """Return which probabilities of a tile stay, True with probability 1 - p.

    Args:
        dropout: dropout of the call.
        leading: q's dimensions before its last two; a head's position is its index over all of them.
        rows: the tile's queries, range(seq_len_q) for all of them; begins at a multiple of 16.
        columns: the tile's keys, likewise.

    Returns:
        (*leading, len(rows), len(columns)), bool, on the seed's device.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011): counter-based Philox4x32.
    """
    assert rows.start % 16 == columns.start % 16 == 0 and rows.step == columns.step == 1
    # Philox returns four words. They go to rows i and i + 8 at columns j and j + 8 of each 16 x 16, which one thread of
    # the kernels holds.
    row_blocks, column_blocks = (-(-len(tile) // 16) for tile in (rows, columns))
    heads = torch.arange(torch.Size(leading).numel(), device=dropout.seed.device)
    row_quads = rows.start // 2 + torch.arange(8 * row_blocks, device=dropout.seed.device)
    column_quads = columns.start // 2 + torch.arange(8 * column_blocks, device=dropout.seed.device)
    words = _philox(column_quads, row_quads[:, None], heads[:, None, None], heads.new_zeros(1), dropout.seed)
    quads = torch.stack(words, -1).reshape(len(heads), row_blocks, 8, column_blocks, 8, 2, 2)
    tile = quads.permute(0, 1, 5, 2, 3, 6, 4).reshape(*leading, 16 * row_blocks, 16 * column_blocks)
    return tile[..., : len(rows), : len(columns)].to(torch.int32) >= drop_below(dropout.p)


def _philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return Philox4x32 of a counter of four words and a key of two, all stored in int64."""
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
