"""Sparklines of our series over commits, each linked to asv's graph of the series."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from perf import units
from perf.site import asv_graphs, pages

MIN_POINTS = 2
WIDTH, HEIGHT, MARGIN = 160, 40, 3  # of a picture, in the units of its own viewBox


@dataclass(frozen=True)
class Series:
    """Seconds or bytes of one case of ours, oldest commit first."""

    params: dict[str, Any]
    values: tuple[float, ...]


def series_of(graphs: Iterable[tuple[str, Any]], benchmark: dict[str, Any], machine: str, impl: str) -> list[Series]:
    """Return the published series of `impl` for an entry of benchmarks.json and a machine.

    Where a machine has several graphs of it (versions of torch, say), each counts by itself: they are not one history.
    """
    cells = pages.asv_cells(benchmark)
    found = []
    for graph in asv_graphs.of(graphs, machine, benchmark["name"]):
        points = [values for _, values, _ in asv_graphs.points(graph)]
        for index, params in enumerate(cells):
            measured = tuple(values[index] for values in points if asv_graphs.is_number(values[index]))
            if params.get("impl") == impl and len(measured) >= MIN_POINTS:
                found.append(Series(params, measured))
    return found


def card(series: Series, text: Callable[[float], str]) -> dict[str, str]:
    """Format values with `text` and draw a series. The axis starts at zero, so that heights compare."""
    first, last = series.values[0], series.values[-1]
    top = max(series.values)
    at = [
        (x, HEIGHT - MARGIN - value / top * (HEIGHT - 2 * MARGIN))
        for x, value in zip(places(len(series.values)), series.values, strict=True)
    ]
    return {
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in at),
        "end_x": f"{at[-1][0]:.1f}",
        "end_y": f"{at[-1][1]:.1f}",
        "last": text(last),
        "change": units.times(first / last),
        "commits": str(len(series.values)),
    }


def places(count: int) -> list[float]:
    """Return the x coordinates of a picture's points, from left to right."""
    return [MARGIN + index * (WIDTH - 2 * MARGIN) / (count - 1) for index in range(count)]
