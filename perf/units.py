"""Formatting of quantities for people: three or four significant digits and a unit."""

import math
from collections.abc import Callable, Iterable, Sequence

MIB, GIB = 2**20, 2**30

_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((GIB, "GiB"), (MIB, "MiB"), (2**10, "KiB"), (1, "B"))
_RATE = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))


def digits(value: float, significant: int = 3) -> str:
    """Format `value` with this many significant digits and no exponent: 12.3, 0.0123, 1234; "?" if it is not finite."""
    if not math.isfinite(value):
        return "?"
    if value == 0:
        return "0"
    exponent = int(f"{abs(value):.{significant - 1}e}".partition("e")[2])
    return f"{value:.{max(0, significant - 1 - exponent)}f}"


def counted(number: int, noun: str) -> str:
    """Format a count: "1 row", "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def extent(ordered: Iterable[str]) -> str:
    """Join the first and the last: "3 to 8"; "3" if they are the same, "" without any."""
    texts = list(ordered)
    return " to ".join(dict.fromkeys((*texts[:1], *texts[-1:])))


def seconds(value: float) -> str:
    """Format a time: 1.23 ms."""
    return seconds_together([value], 3)[0]


def seconds_together(values: Sequence[float], significant: int = 4) -> list[str]:
    """Format times in the unit of the greatest, written once at the end: ["1.234", "1.240 ms"]."""
    scale, unit = _pick(max(map(abs, values)), _TIME)
    texts = [digits(value / scale, significant) for value in values]
    return [*texts[:-1], f"{texts[-1]} {unit}"]


def memory(value: float) -> str:
    """Format a size: 12.3 MiB (2^20 bytes)."""
    scale, unit = _pick(value, _BYTES)
    return f"{digits(value / scale)} {unit}"


def gib(value: float, decimals: int = 2) -> str:
    """12 GiB, whatever the size."""
    return f"{value / GIB:,.{decimals}f} GiB"


def mib(value: float, decimals: int = 0) -> str:
    """12 MiB, whatever the size."""
    return f"{value / MIB:,.{decimals}f} MiB"


def rate_unit(values: Sequence[float]) -> tuple[float, str]:
    """Return scale and name of the unit for the greatest of these rates (FLOP/s)."""
    return _pick(max(values, default=1e12), _RATE)


def rate(value: float) -> str:
    """Format a rate of computation: 801 TFLOP/s."""
    scale, unit = _pick(value, _RATE)
    return f"{digits(value / scale)} {unit}"


def bandwidth(value: float) -> str:
    """Format a bandwidth: 4.24 TB/s (10^12 bytes a second, as in data sheets)."""
    scale, unit = _pick(value, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")))
    return f"{digits(value / scale)} {unit}"


def times(ratio: float) -> str:
    """Format a ratio: 0.0045×, 0.86×, 3.42×, 34.2×, 342×."""
    if ratio < 0.1:  # two decimals would leave at most one digit
        return f"{digits(ratio, 2)}\u00d7"
    decimals = 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{ratio:.{decimals}f}\u00d7"


def minimum_detectable(fraction: float, written: Callable[[float], str]) -> str:
    """Format the minimum detectable slow-down; "over 100 %" where there were too few visits to tell."""
    return written(fraction) if fraction <= 1 else "over 100 %"


def percent(fraction: float) -> str:
    """Format a percentage with a no-break space: 61 %, 4.2 %, 0.3 %, of smaller ones two digits; "?" if not finite."""
    if not math.isfinite(fraction):
        return "?"
    value = 100 * fraction
    text = digits(value, 2) if 0 < value < 0.095 else f"{value:.{0 if value >= 9.95 else 1}f}"
    return f"{text}\u00a0%"


def change(fraction: float) -> str:
    """Format a change in per cent with its sign and a no-break space: +1.2 %."""
    return f"{100 * fraction:+.1f}\u00a0%"


def _pick(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    return next((unit for unit in units if abs(value) >= unit[0]), units[-1])
