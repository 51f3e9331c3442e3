"""Picture of a bucket sweep: exposed communication over bucket size, with the model's curve and optimum."""

import math
from collections.abc import Callable
from typing import Any

from perf import units
from perf.site.axes import LinearAxis, LogAxis
from perf.site.distributed.rows import OURS_SWEPT, Group, Model, Strategy
from perf.site.estimate import Estimate
from perf.units import MIB

CURVE_POINTS = 60


def picture(sweep: Group, model: Model | None, link: Callable[[Strategy], str]) -> dict[str, Any] | None:
    """Marks, intervals and a curve in a square of 100, y downwards; None where nothing was exposed.

    Ours lie at the mean size of the buckets that were sent, since small and large limits may cut alike; torch, which
    does not tell its own, at what was asked for.
    """
    points = [(row, _bucket_bytes(row), row.exposed) for row in sweep.strategies if row.exposed]
    if not points:
        return None
    best = model.best_bucket_bytes if model else None
    sizes = [size for _, size, _ in points]
    across = LogAxis([size / MIB for size in [*sizes, *([best] if best else [])]], digits=(1,))
    curve = _curve(model, *model.measured) if model else []
    up = LinearAxis(
        1e3 * value for _, _, found in points for value in (found.low, found.high, found.median) if math.isfinite(value)
    )
    return {
        "across": [(units.digits(tick, 1), across.at(tick)) for tick in across.ticks],
        "up": [(f"{tick:g}", 100 - up.at(tick)) for tick in up.ticks],
        "zero": round(100 - up.at(0), 2),
        "curve": " ".join(f"{across.at(size / MIB)},{100 - up.at(1e3 * seconds):.2f}" for size, seconds in curve),
        "best": across.at(best / MIB) if best else None,
        "marks": [
            {
                "x": across.at(size / MIB),
                "y": round(100 - up.at(1e3 * found.median), 2),
                "low": round(100 - up.at(1e3 * found.low), 2),
                "high": round(100 - up.at(1e3 * found.high), 2),
                "kind": "ours" if row.name == OURS_SWEPT else "peer",
                "title": _title(row, found),
                "href": link(row),
            }
            for row, size, found in points
        ],
    }


def _bucket_bytes(row: Strategy) -> float:
    return row.bucket_bytes or row.bucket_size_mb * MIB


def _curve(model: Model, low: float, high: float) -> list[tuple[float, float]]:
    """Between two bucket sizes, in bytes: each with its seconds."""
    sizes = [low * (high / low) ** (index / (CURVE_POINTS - 1)) for index in range(CURVE_POINTS)]
    return [(size, model.exposed(size)) for size in sizes]


def _title(row: Strategy, found: Estimate) -> str:
    low, high = (f"{1e3 * value:.3g}" if math.isfinite(value) else "?" for value in (found.low, found.high))
    calls = row.fact("calls")
    sent = f", {calls:g} calls" if calls else ""
    return (
        f"{row.name}, at most {row.bucket_size_mb:g} MiB{sent}: {1e3 * found.median:.3g} ms exposed ({low} to {high})"
    )
