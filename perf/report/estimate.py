"""A case's time as a page shows it: a median, and how well it is known."""

import math
import statistics
from dataclasses import dataclass

from perf.harness.records import CaseResult

# Two-sided 95 % points of Student's t by degrees of freedom; above these the normal value is within 3 %.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_MIN_VISITS = 3


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval: of seconds, of a difference of them, or of bytes, which do not vary."""

    median: float
    low: float
    high: float


def estimate(result: CaseResult | None) -> Estimate | None:
    """Median and interval of a case that has samples.

    Samples of one visit share its drift (clock, power, heat), so the interval comes from the spread of the medians of
    the visits. With fewer than three visits it is McGill, Tukey and Larsen's, from the samples alone: too narrow.
    """
    if result is None or result.status != "ok" or not result.samples_s:
        return None
    samples, visits = result.samples_s, len(result.visits_s)
    median = statistics.median(samples)
    if visits >= _MIN_VISITS:
        medians = [statistics.median(visit) for visit in result.visits_s]
        t = _T95[visits - 2] if visits - 2 < len(_T95) else 1.96
        half = t * statistics.stdev(medians) / math.sqrt(visits)
    elif len(samples) >= 4:
        lower, _, upper = statistics.quantiles(samples, n=4)
        half = 1.57 * (upper - lower) / math.sqrt(len(samples))
    else:
        half = (max(samples) - min(samples)) / 2
    low = median - half
    return Estimate(median, low if min(samples) < 0 else max(low, 0.0), median + half)
