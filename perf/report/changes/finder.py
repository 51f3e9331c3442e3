"""Where did a series change its level? One number a commit, oldest first; nothing here reads a file.

Times: the logarithms, in units of the series' own noise, are cut where that lowers the sum of squares by more than
`PENALTY` a cut (Killick, Fearnhead and Eckley 2012, PELT, by `ruptures`). Noise is the median distance between
neighbours, which a few changes do not move; a short series is not believed to be quieter than its class says. A commit
out of line with both its neighbours counts as one noise away from the nearer, and a level has two commits at least, so
that one bad run is no change: the newest commit alone is reported as such.

Bytes are exact: every other value is a change, but for what an old harness left open. So one series of them has one
way to count (`rows`).
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Logs = npt.NDArray[np.float64]

PENALTY = 30.0
"""In squared noises. Of 2000 histories of 40 commits without a change none shows one, and 4 where noise has the tails
of Student's t with 5 degrees of freedom; a step of 5 noises is seen after three commits in 9 of 10 (`rates`)."""

FEWEST_FOR_NOISE = 10
"""Commits. Of fewer, changes may be half of the distances between neighbours."""

_MAD = 0.6745 * math.sqrt(2)  # the median distance of two normal numbers, in standard deviations of one


@dataclass(frozen=True)
class Step:
    """One change of level."""

    index: int
    """Of the first value at the new level."""

    before: float
    after: float
    """Medians of the two levels."""

    low: float
    high: float
    """95 % interval of after / before - 1; equal for bytes."""

    alone: bool
    """Only the newest value shows it."""

    @property
    def change(self) -> float:
        """after / before - 1."""
        return self.after / self.before - 1


def noise(values: Sequence[float], least: float) -> float:
    """Standard deviation of the logarithm of one value; `least` where there are too few to tell."""
    import numpy as np

    if len(values) < FEWEST_FOR_NOISE:
        return least
    return float(np.median(np.abs(np.diff(np.log(values))))) / _MAD


def steps(values: Sequence[float], negligible: float, sample_noise: float = 0.0) -> list[Step]:
    """Changes of times larger than `negligible` (0.01 is 1 %), oldest first.

    `sample_noise` is the noise that a value's own samples leave open, relative; no series is quieter than that.
    """
    import numpy as np

    logs = np.log(values)
    spread = max(noise(values, negligible), sample_noise, 1e-6)
    if spread > 1:  # nothing could be said of it
        return []
    cuts = [0, *_cuts(logs / spread), len(logs)]
    while (cut := _smallest(logs, cuts)) and cut[0] <= math.log1p(negligible):
        cuts.remove(cut[1])
    found = [_step(logs, cuts[i - 1], cuts[i], cuts[i + 1], spread) for i in range(1, len(cuts) - 1)]
    newest = len(logs) - 1
    level = logs[cuts[-2] : newest]
    least = max(math.sqrt(PENALTY) * spread, math.log1p(negligible))
    if len(level) and max(level.min() - logs[newest], logs[newest] - level.max()) > least:
        found.append(_step(logs, cuts[-2], newest, len(logs), spread, alone=True))
    return found


def exact_steps(values: Sequence[float], negligible: float = 0.0) -> list[Step]:
    """Changes of bytes by more than `negligible` (0.01 is 1 %), none of them 0."""
    pairs = enumerate(itertools.pairwise(values), start=1)
    return [
        Step(index, before, after, after / before - 1, after / before - 1, alone=False)
        for index, (before, after) in pairs
        if abs(after - before) > negligible * before
    ]


def _cuts(scaled: "Logs") -> list[int]:
    import numpy as np
    import ruptures  # 3 ms for 1000 commits; its kernel form is in C

    if len(scaled) < 4:  # two levels of two
        return []
    left, right = np.r_[scaled[2], scaled[:-1]], np.r_[scaled[1:], scaled[-3]]  # the ends have two on one side
    calm = np.clip(scaled, np.minimum(left, right) - 1, np.maximum(left, right) + 1)
    found = ruptures.KernelCPD(kernel="linear", min_size=2).fit(calm.reshape(-1, 1)).predict(pen=PENALTY)
    return [int(cut) for cut in found[:-1]]


def _smallest(logs: "Logs", cuts: Sequence[int]) -> tuple[float, int] | None:
    """Size and place of the smallest change; None without any."""
    levels = [statistics.median(logs[start:end]) for start, end in itertools.pairwise(cuts)]
    sizes = [abs(after - before) for before, after in itertools.pairwise(levels)]
    return min(zip(sizes, cuts[1:-1], strict=True), default=None)


def _step(logs: "Logs", start: int, index: int, end: int, spread: float, alone: bool = False) -> Step:
    before, after = statistics.median(logs[start:index]), statistics.median(logs[index:end])
    half = 1.96 * spread * math.sqrt(1 / (index - start) + 1 / (end - index))
    low, high = (math.expm1(after - before + side) for side in (-half, half))
    return Step(index, math.exp(before), math.exp(after), low, high, alone)
