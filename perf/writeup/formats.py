"""Formats of the numbers in the write-up's sentences and tables; those of `FILTERS` are for its templates too."""

from collections.abc import Callable, Iterable
from typing import Any

from perf.studies.on_file import some
from perf.studies.speedups import NARROW, cost_with_interval, factor, with_interval
from perf.units import GIB, MIB, digits, times

SCALES = {
    "": 1.0,
    "ms": 1e3,
    "s": 1.0,
    "%": 100.0,
    "GiB": 1 / GIB,
    "MiB": 1 / MIB,
    "TFLOP": 1e-12,
    "TFLOP/s": 1e-12,
    "TB/s": 1e-12,
}
"""Factor from SI units and fractions to what is shown."""


def fixed(value: float, decimals: int = 0, unit: str = "") -> str:
    """17.4 ms: this many decimals, then the unit."""
    return f"{value * SCALES[unit]:.{decimals}f} {unit}".rstrip()


def span(values: Iterable[float], decimals: int = 0, unit: str = "") -> str:
    """0.8 to 3.1 ms: the smallest and the largest value, or 0.8 ms if they are written alike."""
    listed = some(list(values), "span")
    least, most = (f"{end(listed) * SCALES[unit]:.{decimals}f}" for end in (min, max))
    return f"{_from(least, most)} {unit}".rstrip()


def speedups(values: Iterable[float], decimals: int = 3, to: str = " to ") -> str:
    """0.958 to 1.019×: the smallest and the largest speed-up, or 0.958× if they are written alike."""
    listed = some(list(values), "speed-ups")
    least, most = (f"{end(listed):.{decimals}f}" for end in (min, max))
    return f"{_from(least, most, to)}\u00d7"


def _from(least: str, most: str, to: str = " to ") -> str:
    return least if least == most else f"{least}{to}{most}"


def speedup(value: tuple[float, float]) -> str:
    """1.175× ± 0.3 %: a speed-up with the relative half-width of its interval."""
    return with_interval(*value[:2])


def cost(value: tuple[float, float]) -> str:
    """1.9 % ± 0.9 %: what ours takes more than the other, of that speed-up."""
    return cost_with_interval(*value[:2])


UNRESOLVED = " (too wide for a verdict)"


def step_speedup(value: tuple[float, float], unresolved: str = UNRESOLVED) -> str:
    """The same as `speedup`; of an interval that is too wide for the studies of steps with a note."""
    return speedup(value) + unresolved * (value[1] > NARROW)


def step_cost(value: tuple[float, float], unresolved: str = UNRESOLVED) -> str:
    """The same as `cost`, with that note."""
    return cost(value) + unresolved * (value[1] > NARROW)


def scientific(value: float) -> str:
    """4.5e-6."""
    return f"{value:.1e}".replace("e-0", "e-")


def exponent(value: float) -> str:
    """3.3e-09."""
    return f"{value:.1e}"


def ms(seconds: float, decimals: int = 2) -> str:
    """Milliseconds without their unit."""
    return fixed(seconds * 1e3, decimals)


def three(seconds: float) -> str:
    """Milliseconds with three significant digits."""
    return digits(seconds * 1e3)


def gib(value: float) -> str:
    """GiB without their unit."""
    return fixed(value / GIB, 2)


def mib(value: float) -> str:
    """MiB without their unit, and without trailing zeros."""
    return fixed(value / MIB, 2).rstrip("0").rstrip(".")


def percent(fraction: float) -> str:
    """+1.2 %: a change, with its sign."""
    return f"{100 * fraction:+.1f} %"


def share(fraction: float) -> str:
    """61.2 %: a part of a whole."""
    return fixed(fraction, 1, "%")


def gain(before: float, after: float) -> str:
    """1.86×: how many times as fast."""
    return f"{before / after:.2f}\u00d7"


def least(values: Iterable[Any]) -> Any:
    """The smallest value; `NotOnFile` of none, where jinja's own filter is undefined."""
    return min(some(list(values), "minimum"))


def most(values: Iterable[Any]) -> Any:
    """The largest value; `NotOnFile` of none."""
    return max(some(list(values), "maximum"))


FILTERS: dict[str, Callable[..., Any]] = {
    "min": least,
    "max": most,
    "fixed": fixed,
    "span": span,
    "speedup": speedup,
    "step_speedup": step_speedup,
    "step_cost": step_cost,
    "speedups": speedups,
    "factor": factor,
    "times": times,
    "scientific": scientific,
    "exponent": exponent,
    "gib": gib,
    "mib": mib,
    "ms": ms,
    "percent": percent,
}
