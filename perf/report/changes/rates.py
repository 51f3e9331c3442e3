"""How often is the finder of changes wrong, and what does it miss? Histories drawn by chance, and one step in each.

Everything is in units of a series' noise, so it holds for all: a step of 5 noises is 10 % where commits scatter by 2 %,
and 1.5 % where they scatter by 0.3 %.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perf.gate.rate import Rate
from perf.report.changes.finder import steps

COMMITS = 40
NOISE = 0.02
SIZES = (3, 5, 8)
"""Of a step, in noises."""

AFTER = (2, 3, 5, 10)
"""Commits at the new level."""


@dataclass(frozen=True)
class Found:
    """One step, drawn often."""

    size: int
    after: int
    ours: Rate
    asvs: Rate


@dataclass(frozen=True)
class Rates:
    """What the finder does with histories of `COMMITS` commits."""

    normal: Rate
    """Histories without a change in which one was found."""

    tailed: Rate
    """The same, where noise has the tails of Student's t with 5 degrees of freedom."""

    found: Sequence[Found]


def rates(histories: int = 2000, with_a_step: int = 200, of_asv: int = 25) -> Rates:
    """The same numbers at every call; takes a second, most of it asv's finder's."""
    import numpy as np

    rng = np.random.default_rng(0)
    return Rates(
        _false(lambda rng: rng.standard_normal(COMMITS), histories, rng),
        _false(lambda rng: rng.standard_t(5, COMMITS) / np.sqrt(5 / 3), histories, rng),
        [_found(size, after, with_a_step, of_asv, rng) for size in SIZES for after in AFTER],
    )


def _false(draw: Callable[[Any], Any], histories: int, rng: Any) -> Rate:
    import numpy as np

    return Rate(sum(bool(_ours(np.exp(NOISE * draw(rng)))) for _ in range(histories)), histories)


def _found(size: int, after: int, ours: int, asvs: int, rng: Any) -> Found:
    import numpy as np

    at = COMMITS - after
    drawn = np.exp(NOISE * (rng.standard_normal((ours, COMMITS)) + size * (np.arange(COMMITS) >= at)))
    hits = [sum(_near(at, finder(one)) for one in drawn[:most]) for finder, most in ((_ours, ours), (_asvs, asvs))]
    return Found(size, after, Rate(hits[0], ours), Rate(hits[1], asvs))


def _near(at: int, starts: Sequence[int]) -> bool:
    """Noise may make the level seem to change a commit early or late."""
    return any(abs(start - at) <= 1 for start in starts)


def _ours(values: Any) -> list[int]:
    return [one.index for one in steps(values, negligible=0.0) if not one.alone]


def _asvs(values: Any) -> list[int]:
    from asv.step_detect import detect_steps

    return [start for start, *_ in detect_steps(values.tolist(), [None] * len(values))[1:]]
