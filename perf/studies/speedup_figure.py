"""Figure of speed-ups: ours over each other arm, with 95 % intervals."""

import math
from collections.abc import Callable
from pathlib import Path

from perf.labels import label as name_of
from perf.studies import figures
from perf.studies.rows import Row
from perf.studies.speedups import bound_of, speedup_of


def draw(rows: list[Row], label: Callable[[Row], str], path: Path, title: str) -> None:
    """Plot a line for each label and a colour for each other arm. Draw nothing without a speed-up.

    Hollow marks are lower bounds: the other arm counts by its GPU-busy time alone.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    timed = [row for row in rows if row["status"] == "ok"]
    if not timed:
        return
    labels = list(dict.fromkeys(map(label, timed)))
    others = list(dict.fromkeys(row["against"] for row in timed))
    figure, axes = figures.subplots(figsize=(6.5, 1.2 + 0.32 * len(labels) + 0.2 * len(others)))
    for number, other in enumerate(others):
        name = figures.shortened(name_of(other))
        mine = [row for row in timed if row["against"] == other]
        shift = 0.15 * (number - (len(others) - 1) / 2)
        for estimate, entry, fill in ((speedup_of, name, "full"), (bound_of, f"{name}, its GPU alone", "none")):
            points = [(*estimate(row), labels.index(label(row)) + shift) for row in mine]
            points = [point for point in points if point[0] > 0]
            if not points:
                continue
            speedups, halves, places = zip(*points, strict=True)
            finite = [half if math.isfinite(half) else 0.0 for half in halves]
            below = [speedup * half / (1 + half) for speedup, half in zip(speedups, finite, strict=True)]
            above = [speedup * min(half, 1) for speedup, half in zip(speedups, finite, strict=True)]
            style = {"fmt": "o", "fillstyle": fill, "color": f"C{number}", "markersize": 4, "capsize": 3}
            axes.errorbar(speedups, places, xerr=[below, above], label=entry, **style)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    even, fine, coarse = MaxNLocator(6), LogLocator(subs=(1, 1.5, 2, 3, 5, 7)), LogLocator(subs=(1, 2, 5))
    decades = LogLocator(numticks=8)
    by_width = ((3, even), (10, fine), (200, coarse))
    axes.xaxis.set_major_locator(next((ticks for most, ticks in by_width if high <= most * low), decades))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}\u00d7")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    ours = list(dict.fromkeys(row["ours"] for row in timed))
    whose = figures.shortened(name_of(ours[0])) if len(ours) == 1 else "ours"
    axes.set_xlabel(f"speed-up of {whose} over", fontsize=8)
    figures.legend_below(figure, columns=1)
    figures.save(figure, path, title)
