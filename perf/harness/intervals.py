"""95 % confidence intervals of means and medians, from a few independent numbers.

What is independent is the caller's to say: visits of a process share its placement, samples of a visit share its drift.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95

_NORMAL = statistics.NormalDist()


@dataclass(frozen=True)
class Interval:
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


def of_mean(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of so many numbers, by Student's t. Raises ValueError for none."""
    if not values:
        raise ValueError("no numbers were given; allowed: one or more")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, math.inf)
    return Interval(mean, student(len(values) - 1, level) * statistics.stdev(values) / math.sqrt(len(values)))


def of_trimmed_mean(values: Sequence[float], share: float = 0.2, level: float = LEVEL) -> Interval:
    """The mean without the `share` at either end, for numbers of which one in ten is far off; below five, `of_mean`.

    The interval is Tukey and McLaughlin's (1963), from the winsorized scatter. With their h - 1 degrees of freedom, of
    the h numbers kept of n, it holds 93 to 94 % of the normal means that it should hold 95 % of (n = 5 to 20); with
    (h - 1) sqrt(h / n) it holds 94.8 to 95.6 %.
    """
    n = len(values)
    cut = int(share * n)
    if n < 5 or not cut:
        return of_mean(values, level)
    ordered = sorted(values)
    kept = ordered[cut : n - cut]
    winsorized = [*[kept[0]] * cut, *kept, *[kept[-1]] * cut]
    error = statistics.stdev(winsorized) * math.sqrt(n) / len(kept)
    return Interval(statistics.fmean(kept), student((len(kept) - 1) * math.sqrt(len(kept) / n), level) * error)


def of_median(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The median of four or more samples, from their quartiles; fewer only say half their range. Raises for none.

    For normal numbers, at 95 %: 1.82 IQR / sqrt(n), which holds 95 % from 8 on. The notches of McGill, Tukey and Larsen
    (1978), 1.57 IQR / sqrt(n), compare two medians; of one median they hold 91 %.
    """
    if not values:
        raise ValueError("no numbers were given; allowed: one or more")
    if len(values) < 4:
        return Interval(statistics.median(values), (max(values) - min(values)) / 2)
    lower, middle, upper = statistics.quantiles(values, n=4)
    deviation = (upper - lower) / (2 * _NORMAL.inv_cdf(0.75))
    return Interval(middle, normal(level) * math.sqrt(math.pi / 2 / len(values)) * deviation)


def student(dof: float, level: float = LEVEL) -> float:
    """The two-sided point of Student's t."""
    from scipy.special import stdtrit

    return float(-stdtrit(dof, (1 - level) / 2))


def normal(level: float = LEVEL) -> float:
    """The two-sided point of the normal distribution: Student's where the scatter is known."""
    return _NORMAL.inv_cdf((1 + level) / 2)
