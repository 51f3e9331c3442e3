"""Numbers of programs, and of heads visited together, with which all programs end at about the same time.

The tiles of a causal head differ in work. Programs take the heaviest tiles of some heads first, then the next, down to
the lightest, and go on with the next heads. The more heads, the better that balances, but their keys and values should
stay in the L2 cache. Where they do not end with a turn of all programs, the heaviest tiles of the next heads meet the
lightest, and at the end the heaviest of a few last heads meet nothing.
"""

from functools import lru_cache

import numpy as np

MOST_COUNTED, MOST_CANDIDATES = 1 << 12, 16
"""Tiles that are counted for a candidate, if heads are that many, and candidates: a plan takes milliseconds at most."""

SAME = 1.01
"""Of candidates whose longest programs differ by less, the one nearest to what fits the cache is taken."""

MOST_TILES = 1 << 14
"""With more tiles, each program has so many that one more or less does not matter."""


def equal_groups(heads: int, fitting: int) -> int:
    """Return a number near `fitting` that divides the heads into about equal groups: the last one is no small rest."""
    return -(-heads // max(1, round(heads / fitting)))


@lru_cache(maxsize=4096)
def heads_in_turns(heads: int, fitting: int, work: tuple[int, ...], programs: int) -> int:
    """Return the number of heads, from half to one and a half of `fitting`, with the least work of any program.

    `work` is that of a head's tiles, the heaviest first, which the programs take in turn, every other turn backward. Of
    many heads only the first are counted: the others repeat them.
    """
    tiles, low, high = len(work), max(1, fitting // 2), min(heads, fitting * 3 // 2)
    whole_turns = (round(turns * programs / tiles) for turns in range(1, high * tiles // programs + 2))
    equal = (-(-heads // groups) for groups in range(max(1, heads // high), heads // low + 2))
    near = sorted({*whole_turns, *equal, fitting}, key=lambda x: (x > fitting, abs(x - fitting)))
    counted = min(heads, max(2 * high, MOST_COUNTED // tiles))
    candidates = [x for x in near if low <= x <= high][:MOST_CANDIDATES]
    longest = [longest_program(counted, x, work, programs) for x in candidates]
    return next(x for x, it in zip(candidates, longest, strict=True) if it <= SAME * min(longest))


@lru_cache(maxsize=4096)
def balanced_turns(heads: int, fitting: int, work: tuple[int, ...], programs: tuple[int, ...]) -> tuple[int, int]:
    """Return, of these numbers of programs, that with the least work of any program, and `heads_in_turns` for it."""
    if heads * len(work) > MOST_TILES:
        programs = programs[:1]
    found = [(number, heads_in_turns(heads, fitting, work, number)) for number in programs]
    return min(found, key=lambda it: longest_program(heads, it[1], work, it[0]))


def longest_program(heads: int, heads_at_once: int, work: tuple[int, ...], programs: int) -> int:
    """Return the work of the program that has most; `gluon_kernels.order` has the order of tiles."""
    turn, place = np.divmod(np.arange(heads * len(work)), programs)
    program = np.where(turn % 2 == 0, place, programs - 1 - place)
    group, rank = np.divmod(np.arange(heads * len(work)), heads_at_once * len(work))
    tile = rank // np.minimum(heads_at_once, heads - group * heads_at_once)
    return int(np.bincount(program, np.asarray(work)[tile]).max())
