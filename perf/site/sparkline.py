"""Sparklines: pictures of a series over commits, oldest first, for the macro `sparkline`."""

from collections.abc import Callable, Sequence
from typing import Any

from perf import units

WIDTH, HEIGHT, MARGIN = 160, 40, 3  # of a picture, in the units of its own viewBox


def sparkline(values: Sequence[float], low: float, index: int) -> dict[str, Any]:
    """Return the polyline of values from `low` to their maximum, and the position of one of them."""
    up = (HEIGHT - 2 * MARGIN) / (max(values) - low)
    heights = [HEIGHT - MARGIN - (value - low) * up for value in values]
    at = [(f"{x:.1f}", f"{y:.1f}") for x, y in zip(places(len(values)), heights, strict=True)]
    x, y = at[index]
    return {"width": WIDTH, "height": HEIGHT, "points": " ".join(map(",".join, at)), "x": x, "y": y}


def card(values: Sequence[float], text: Callable[[float], str]) -> dict[str, Any]:
    """Draw a series from zero, so that heights compare, and format its newest value with `text`."""
    return {
        "picture": sparkline(values, 0.0, -1),
        "last": text(values[-1]),
        "change": units.times(values[0] / values[-1]),
        "commits": len(values),
    }


def places(count: int) -> list[float]:
    """Return the x coordinates of a picture's points, from left to right."""
    return [MARGIN + index * (WIDTH - 2 * MARGIN) / (count - 1) for index in range(count)]
