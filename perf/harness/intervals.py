"""95 % confidence intervals of means and medians, from a few independent numbers.

The caller decides what is independent: visits of a process share its placement, samples of a visit share its drift.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95

_NORMAL = statistics.NormalDist()


@dataclass(frozen=True)
class Interval:
    """A value, and half the width of its interval: of one number infinite by `of_mean`, and 0 by `of_median`."""

    value: float
    half: float

    @property
    def low(self) -> float:
        """Return the lower end."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """Return the upper end."""
        return self.value + self.half


def of_mean(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the mean and its interval by Student's t. Raises `ValueError` without values."""
    if not values:
        raise ValueError("no values were given; allowed: one or more")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, math.inf)
    return Interval(mean, student(len(values) - 1, level) * statistics.stdev(values) / math.sqrt(len(values)))


def of_trimmed_mean(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the mean without a fifth of the values at either end, robust to outliers; `of_mean` of fewer than five.

    The interval is Tukey and McLaughlin's (1963), from the winsorized standard deviation. For normal values (n = 5 to
    20) it covers 93 to 94 % with their h - 1 degrees of freedom, h being the values kept, and 94.8 to 95.6 % with
    (h - 1) sqrt(h / n).
    """
    n = len(values)
    cut = n // 5
    if not cut:
        return of_mean(values, level)
    ordered = sorted(values)
    kept = ordered[cut : n - cut]
    winsorized = [*[kept[0]] * cut, *kept, *[kept[-1]] * cut]
    error = statistics.stdev(winsorized) * math.sqrt(n) / len(kept)
    return Interval(statistics.fmean(kept), student((len(kept) - 1) * math.sqrt(len(kept) / n), level) * error)


def of_median(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the median and its interval from the quartiles; half the range of fewer than four values.

    For normal values the interval at 95 % is 1.82 IQR / sqrt(n), which covers 95 % from n = 8 on. The notches of
    McGill, Tukey and Larsen (1978), 1.57 IQR / sqrt(n), compare two medians; a single median they cover by 91 %. Raises
    `ValueError` without values.
    """
    if not values:
        raise ValueError("no values were given; allowed: one or more")
    if len(values) < 4:
        return Interval(statistics.median(values), (max(values) - min(values)) / 2)
    lower, middle, upper = statistics.quantiles(values, n=4)
    deviation = (upper - lower) / (2 * _NORMAL.inv_cdf(0.75))
    return Interval(middle, normal(level) * math.sqrt(math.pi / 2 / len(values)) * deviation)


def student(dof: float, level: float = LEVEL) -> float:
    """Return the two-sided critical value of Student's t."""
    from scipy.special import stdtrit

    return float(-stdtrit(dof, (1 - level) / 2))


def normal(level: float = LEVEL) -> float:
    """Return the two-sided critical value of the normal distribution."""
    return _NORMAL.inv_cdf((1 + level) / 2)
