"""Median and confidence interval of a case's time."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perf import units
from perf.harness.intervals import of_mean, of_median
from perf.harness.records import CaseResult

Name = TypeVar("Name", bound=Hashable)

MIN_VISITS = 3
"""Minimum number of visits whose spread gives an interval."""


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval, of times, differences of times, or bytes without scatter.

    The interval of a single sample is infinite, so that nothing is better or worse than it.
    """

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Half of the interval over the median."""
        return self.high / self.median - 1

    @property
    def spread(self) -> str:
        """ "± 1.2 %"; "± ?" of a single sample."""
        return f"±\u00a0{units.percent(self.relative)}"


def estimate(result: CaseResult | None) -> Estimate | None:
    """Median and interval of a case that has samples."""
    if result is None or result.status != "ok" or not result.samples_s:
        return None
    return of_samples(result.samples_s, result.visits_s)


def of_samples(samples_s: Sequence[float], visits_s: Sequence[Sequence[float]] = ()) -> Estimate:
    """Median and interval of samples, of which there is one or more.

    Samples of one visit share its drift (clock, power, heat), so the interval comes from the spread of the medians of
    the visits. With fewer than three visits it comes from the samples alone: too narrow.
    """
    median = statistics.median(samples_s)
    if len(visits_s) >= MIN_VISITS:
        half = of_mean([statistics.median(visit) for visit in visits_s]).half
    else:
        half = of_median(samples_s).half if len(samples_s) > 1 else math.inf
    low = median - half
    return Estimate(median, low if min(samples_s) < 0 else max(low, 0.0), median + half)


@dataclass(frozen=True)
class Ratio:
    """How many times as long as ours another time is."""

    value: float
    half: float
    """Half of its 95 % interval, relative: the two intervals are independent."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.value / (1 + self.half)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.value * (1 + self.half)

    @property
    def verdict(self) -> str:
        """Return "better" or "worse" where the two intervals are apart, "even" where they touch."""
        return "better" if self.value > 1 + self.half else "worse" if self.high < 1 else "even"

    @property
    def spread(self) -> str:
        """ "± 4.0 %"; "± ?" of a single sample."""
        return f"±\u00a0{units.percent(self.half)}"

    @property
    def words(self) -> str:
        """ "1.05× ± 4.0 %"."""
        return f"{units.times(self.value)} {self.spread}"


def ratio(mine: Estimate, other: Estimate) -> Ratio:
    """Return the ratio of `other` to `mine`, both above 0."""
    return Ratio(other.median / mine.median, math.hypot(mine.relative, other.relative))


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of independent ratios."""
    mean = statistics.geometric_mean(one.value for one in ratios)
    return Ratio(mean, math.hypot(*(one.half for one in ratios)) / len(ratios))


def shortest(times: Mapping[Name, Estimate]) -> list[Name]:
    """Return the name of the shortest time, and after it those that are not distinguishable from it by `Ratio`."""
    ordered = sorted(times, key=lambda name: times[name].median)
    return [name for name in ordered if name == ordered[0] or ratio(times[ordered[0]], times[name]).verdict == "even"]
