"""Median and confidence interval of a case's time."""

import math
import statistics
from dataclasses import dataclass

from perf.harness.intervals import of_mean, of_median
from perf.harness.records import CaseResult

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


def estimate(result: CaseResult | None) -> Estimate | None:
    """Median and interval of a case that has samples.

    Samples of one visit share its drift (clock, power, heat), so the interval comes from the spread of the medians of
    the visits. With fewer than three visits it comes from the samples alone: too narrow.
    """
    if result is None or result.status != "ok" or not result.samples_s:
        return None
    median = statistics.median(result.samples_s)
    if len(result.visits_s) >= MIN_VISITS:
        half = of_mean([statistics.median(visit) for visit in result.visits_s]).half
    else:
        half = of_median(result.samples_s).half if len(result.samples_s) > 1 else math.inf
    low = median - half
    return Estimate(median, low if min(result.samples_s) < 0 else max(low, 0.0), median + half)
