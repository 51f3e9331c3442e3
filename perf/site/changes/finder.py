"""Detection of level changes in a series of one number per commit, oldest first.

Times are cut in two stages. Where the logarithms, in units of the series' own noise, have their sum of squares lowered
by more than `PENALTY` a cut (Killick, Fearnhead and Eckley 2012, PELT, by `ruptures`), a level may begin. It does where
neither correlated noise, nor the scatter between sessions, nor a steady drift explains it (`dependence`), and
where it is clear of the scatter within its own two levels. Noise is the median distance between neighbours, which a few
changes do not move; the noise of a short series is at least its class's threshold. A level has two commits at the
end of a history and three before it, and a rare commit out of line with both its neighbours counts as little, so that
one bad run is no change: the newest commit alone is reported as such.

Without session numbers, levels caused by sessions are reported as changes (`rates`).

Bytes are exact: every difference is a change, except within the tolerance of old harnesses (`rows`).
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perf.harness.intervals import normal
from perf.site.changes.dependence import PER_CUT, deviance, explain

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Logs = npt.NDArray[np.float64]

PENALTY = 30.0
"""Penalty of a candidate cut, in noise variances."""

CLEAR = 3.0
"""Minimum difference of two levels, in standard errors from their own scatter (Welch 1947)."""

RARE = 20
"""Outliers are clipped up to one in this many commits. More count as noise."""

WINDOW = 100
"""Commits judged together. In a longer history, each 50 are judged with 25 on both sides."""

FEWEST_FOR_NOISE = 10
"""Minimum number of commits for an estimate. In fewer, changes may be half of the neighbours' distances."""

_MAD = 0.6745 * math.sqrt(2)  # median distance of two normal numbers, in their standard deviation


@dataclass(frozen=True)
class Step:
    """One change of level."""

    index: int
    """Index of the first value at the new level."""

    before: float
    after: float
    """Medians of the two levels."""

    low: float
    high: float
    """95 % interval of after / before - 1; equal for bytes."""

    alone: bool
    """Only the newest value shows it."""

    border: bool = False
    """Whether it is no larger than the scatter between sessions and coincides with a session's start."""

    @property
    def change(self) -> float:
        """after / before - 1."""
        return self.after / self.before - 1


@dataclass(frozen=True)
class Drift:
    """Steady rise or fall of a whole series."""

    rate: float
    """Relative, per commit: 0.001 is 0.1 % more with each."""

    total: float
    """last / first - 1, of the line."""


@dataclass(frozen=True)
class Found:
    """Steps and drift of a series of times."""

    steps: list[Step]
    """Changes of level, oldest first."""

    borders: list[Step]
    """Steps at the border of two sessions, explained by them."""

    drift: Drift | None


def noise(values: Sequence[float], least: float) -> float:
    """Return the standard deviation of a value's logarithm; `least` if there are too few values."""
    import numpy as np

    if len(values) < FEWEST_FOR_NOISE:
        return least
    return float(np.median(np.abs(np.diff(np.log(values))))) / _MAD


def find(
    values: Sequence[float], negligible: float, sample_noise: float = 0.0, sessions: Sequence[int] | None = None
) -> Found:
    """Find steps and drift larger than `negligible` (0.01 is 1 %) in positive times.

    `sample_noise` is a value's relative noise from its own samples, the minimum noise of the series. `sessions` numbers
    each value's session; None if unknown.
    """
    import numpy as np

    logs = np.log(values)
    spread = max(noise(values, negligible), sample_noise, 1e-6)
    if spread > 1 or len(logs) < 2:  # no step is detectable
        return Found([], [], None)
    least = max(sample_noise, negligible if len(logs) < FEWEST_FOR_NOISE else 0.0, 1e-6)
    calm = logs if _bad_runs(logs, spread) * RARE > max(len(logs), RARE) else _calm(logs, 4 * spread)
    candidates = _held(logs, _cuts(logs / spread))
    kept = _standing(calm, candidates, sessions, least)
    borders = set[int]()
    if sessions is not None and len(kept) < len(candidates):
        border = {at for at in range(1, len(logs)) if sessions[at] != sessions[at - 1]}
        free = _standing(calm, candidates, None, least)
        borders = {at for cut in free if cut not in kept for at in sorted(border) if abs(at - cut) <= 1}
    newest, cuts = len(logs) - 1, [0, *_large(logs, kept, negligible), len(logs)]
    found = [_step(logs, *around, spread) for around in zip(cuts, cuts[1:], cuts[2:], strict=False)]
    level = logs[cuts[-2] : newest]
    beyond = max(math.sqrt(PENALTY) * spread, math.log1p(negligible))
    if len(level) and max(level.min() - logs[newest], logs[newest] - level.max()) > beyond:
        found.append(_step(logs, cuts[-2], newest, len(logs), spread, alone=True))
    borders -= set(kept)
    ends = [0, *_large(logs, sorted(borders.union(cuts[1:-1])), negligible), len(logs)]  # no level spans a step
    around_each = zip(ends, ends[1:], ends[2:], strict=False)
    marked = [_step(logs, *around, spread, border=True) for around in around_each if around[1] in borders]
    drift = None if kept else _drift(calm, sessions, least, negligible)
    return Found(found, marked, drift)


def exact_steps(values: Sequence[float], negligible: Sequence[float] = ()) -> list[Step]:
    """Return changes of positive byte counts beyond `negligible` (0.01 is 1 %), one for each value after the first."""
    pairs = zip(itertools.pairwise(values), negligible or itertools.repeat(0.0), strict=False)
    return [
        Step(index, before, after, after / before - 1, after / before - 1, alone=False)
        for index, ((before, after), least) in enumerate(pairs, start=1)
        if abs(after - before) > least * before
    ]


def _calm(logs: "Logs", most: float) -> "Logs":
    """Clip each value to within `most` of its nearer neighbour. An end has both neighbours on one side."""
    import numpy as np

    if len(logs) < 3:
        return logs
    left, right = np.r_[logs[2], logs[:-1]], np.r_[logs[1:], logs[-3]]
    return np.clip(logs, np.minimum(left, right) - most, np.maximum(left, right) + most)


def _bad_runs(logs: "Logs", spread: float) -> int:
    return int((_calm(logs, 4 * spread) != logs).sum())


def _cuts(scaled: "Logs") -> list[int]:
    import ruptures  # 3 ms for 1000 commits; its kernel form is in C

    if len(scaled) < 4:  # two levels of two
        return []
    found = ruptures.KernelCPD(kernel="linear", min_size=2).fit(_calm(scaled, 1).reshape(-1, 1)).predict(pen=PENALTY)
    return [int(cut) for cut in found[:-1]]


def _held(logs: "Logs", cuts: Sequence[int]) -> list[int]:
    """Merge inner levels of two commits into the closer neighbour."""
    kept = [0, *cuts, len(logs)]
    while short := [at for at in range(1, len(kept) - 2) if kept[at + 1] - kept[at] < 3]:
        kept.remove(min(_changes(logs, kept)[short[0] - 1 : short[0] + 1])[1])
    return kept[1:-1]


def _standing(calm: "Logs", cuts: Sequence[int], sessions: Sequence[int] | None, least: float) -> list[int]:
    """Return the cuts that neither correlated noise, sessions nor a drift explain."""
    kept = list[int]()
    for start in range(0, max(len(calm) - WINDOW // 2, 1), WINDOW // 2):
        end = min(start + WINDOW, len(calm))
        first = start + WINDOW // 4 if start else 0
        last = end - WINDOW // 4 if end < len(calm) else end
        inside = [cut - start for cut in cuts if start < cut < end]
        if inside:
            of_these = None if sessions is None else sessions[start:end]
            best = explain(calm[start:end], inside, of_these, least)
            kept += [cut + start for cut in best.cuts if first <= cut + start < last]
    while unclear := [one for one in _clearness(calm, kept) if one[0] < CLEAR]:
        kept.remove(min(unclear)[1])
    return kept


def _clearness(calm: "Logs", cuts: Sequence[int]) -> list[tuple[float, int]]:
    """Return each cut with its difference of means, in standard errors of the two levels."""
    import numpy as np

    levels = np.split(calm, cuts)
    errors = [level.var(ddof=1) / len(level) if len(level) > 1 else 0.0 for level in levels]
    return [
        (abs(after.mean() - before.mean()) / (math.sqrt(one + other) or 1e-300), cut)
        for cut, (before, after), (one, other) in zip(
            cuts, itertools.pairwise(levels), itertools.pairwise(errors), strict=True
        )
    ]


def _drift(calm: "Logs", sessions: Sequence[int] | None, least: float, negligible: float) -> Drift | None:
    """Fit a drift; None if correlated noise explains the series or the total is negligible."""
    import numpy as np

    if len(calm) < FEWEST_FOR_NOISE or len(calm) > WINDOW:
        return None
    gain = deviance(calm, [], False, sessions, least) - deviance(calm, [], True, sessions, least)
    slope = float(np.polyfit(np.arange(len(calm)), calm, 1)[0])
    total = math.expm1(slope * (len(calm) - 1))
    return Drift(math.expm1(slope), total) if gain > PER_CUT and abs(total) > negligible else None


def _large(logs: "Logs", cuts: Sequence[int], negligible: float) -> list[int]:
    """Remove changes up to `negligible`, the smallest first."""
    kept = [0, *cuts, len(logs)]
    while len(kept) > 2 and (smallest := min(_changes(logs, kept)))[0] <= math.log1p(negligible):
        kept.remove(smallest[1])
    return kept[1:-1]


def _changes(logs: "Logs", ends: Sequence[int]) -> list[tuple[float, int]]:
    """Return size and index of every change between the levels that `ends` delimit."""
    levels = [statistics.median(logs[start:end]) for start, end in itertools.pairwise(ends)]
    return [
        (abs(after - before), cut) for (before, after), cut in zip(itertools.pairwise(levels), ends[1:-1], strict=True)
    ]


def _step(
    logs: "Logs", start: int, index: int, end: int, spread: float, alone: bool = False, border: bool = False
) -> Step:
    before, after = statistics.median(logs[start:index]), statistics.median(logs[index:end])
    half = normal() * spread * math.sqrt(1 / (index - start) + 1 / (end - index))
    low, high = (math.expm1(after - before + side) for side in (-half, half))
    return Step(index, math.exp(before), math.exp(after), low, high, alone, border)
