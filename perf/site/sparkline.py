"""Sparklines: pictures of a series over commits, oldest first, for the macro `sparkline`."""

from collections.abc import Callable, Sequence
from typing import Any

from perf import units

WIDTH, HEIGHT, MARGIN = 160, 40, 3  # of a picture, in the units of its own viewBox


def sparkline(values: Sequence[float], low: float, index: int, changed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the polyline of values from `low` to their maximum, and the position of one of them.

    `changed` says of each value what changed before it; "" for nothing.
    """
    up = (HEIGHT - 2 * MARGIN) / (max(values) - low)
    heights = [HEIGHT - MARGIN - (value - low) * up for value in values]
    step = (WIDTH - 2 * MARGIN) / (len(values) - 1)
    at = [(f"{MARGIN + number * step:.1f}", f"{y:.1f}") for number, y in enumerate(heights)]
    x, y = at[index]
    breaks = [(x, why) for (x, _), why in zip(at, changed, strict=False) if why]
    return {"width": WIDTH, "height": HEIGHT, "points": " ".join(map(",".join, at)), "x": x, "y": y, "breaks": breaks}


def card(values: Sequence[float], text: Callable[[float], str]) -> dict[str, Any]:
    """Draw a series from zero, so that heights compare, and format its newest value with `text`."""
    return {
        "picture": sparkline(values, 0.0, -1),
        "last": text(values[-1]),
        "change": units.times(values[0] / values[-1]),
        "commits": len(values),
    }
