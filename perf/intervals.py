"""How well a mean is known: the one place that turns a few independent numbers into a 95 % interval.

What is independent is the caller's to say: visits of a process share its placement, samples of a visit share its drift.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Known:
    """A value, and half the width of its interval; infinite where one number alone cannot say."""

    value: float
    half: float

    @property
    def low(self) -> float:
        """The lower end."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.value + self.half


def of_mean(values: Sequence[float], level: float = LEVEL) -> Known:
    """The mean of so many numbers, by Student's t. Raises ValueError for none."""
    if not values:
        raise ValueError("no numbers were given; allowed: one or more")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Known(mean, math.inf)
    return Known(mean, student(len(values) - 1, level) * statistics.stdev(values) / math.sqrt(len(values)))


def of_trimmed_mean(values: Sequence[float], share: float = 0.2, level: float = LEVEL) -> Known:
    """The mean without so many at either end, and its interval (Tukey and McLaughlin 1963); below five, `of_mean`."""
    from scipy.stats import mstats

    if len(values) < 5:
        return of_mean(values, level)
    low, high = mstats.trimmed_mean_ci(values, limits=(share, share), alpha=1 - level)
    return Known(float(low + high) / 2, float(high - low) / 2)


def student(dof: float, level: float = LEVEL) -> float:
    """The two-sided point of Student's t."""
    from scipy.special import stdtrit

    return float(-stdtrit(dof, (1 - level) / 2))
