"""Axes of pictures: what they span, where their ticks are, and where a value lies in per cent of the length."""

import math
from collections.abc import Iterable, Sequence


class LogAxis:
    """Logarithmic axis, from tick to tick, that contains all values, which are positive."""

    def __init__(self, values: Iterable[float], digits: Sequence[float] = (1, 2, 5)):
        inside = list(values)
        first, last = math.floor(math.log10(min(inside))) - 1, math.ceil(math.log10(max(inside))) + 1
        steps = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        self.low = max(step for step in steps if step <= min(inside) * 1.0001)
        self.high = min(step for step in steps if step >= max(inside) * 0.9999 and step > self.low)
        self.ticks = [step for step in steps if self.low <= step <= self.high]

    def at(self, value: float) -> float:
        """Return the position of a value, clamped to the ends."""
        place = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return round(100 * min(place, 1.0), 2)


class LinearAxis:
    """Linear axis, from tick to tick, that contains zero and all values."""

    def __init__(self, values: Iterable[float]):
        from matplotlib.ticker import MaxNLocator

        inside = [0.0, *values]
        low, high = min(inside), max(inside)
        if low == high:
            high = 1.0
        self.ticks = [float(tick) for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)]
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def at(self, value: float) -> float:
        """Return the position of a value, clamped to the ends."""
        return round(100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0), 2)
