"""The picture of ratios: how our time compares with that of each other arm, and how well that is known."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf.studies import figures
from perf.studies.ratios import bound_of, ratio_of


def draw(rows: list[dict[str, Any]], label: Callable[[dict[str, Any]], str], path: Path, title: str) -> None:
    """Ratios with their intervals: a line for each label, a colour for each other arm. No picture without a ratio.

    Hollow where a ratio is to the time for which the GPU is busy with the other arm.
    """
    timed = [row for row in rows if row["status"] == "ok"]
    if not timed:
        return
    labels = list(dict.fromkeys(map(label, timed)))
    others = list(dict.fromkeys(row["against"] for row in timed))
    figure, axes = figures.subplots(figsize=(6.5, 1.2 + 0.32 * len(labels) + 0.2 * len(others)))
    for number, other in enumerate(others):
        mine = [row for row in timed if row["against"] == other]
        for of, words, filled in ((ratio_of, other, "full"), (bound_of, f"{other}, its GPU alone", "none")):
            found = [(labels.index(label(row)) + 0.15 * number, *of(row)) for row in mine]
            found = [(line, ratio, half) for line, ratio, half in found if math.isfinite(ratio)]
            if found:
                axes.errorbar(
                    [ratio for _, ratio, _ in found],
                    [line for line, _, _ in found],
                    xerr=[ratio * min(half, 1) if math.isfinite(half) else 0.0 for _, ratio, half in found],
                    fmt="o",
                    fillstyle=filled,
                    color=f"C{number}",
                    markersize=4,
                    capsize=3,
                    label=words,
                )
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    ours = list(dict.fromkeys(row["ours"] for row in timed))
    axes.set_xlabel(f"time of {ours[0] if len(ours) == 1 else 'ours'} over that of", fontsize=8)
    axes.set_title(title, fontsize=8)
    figure.legend(fontsize=8, loc="outside lower center", ncols=1)
    figures.save(figure, path)
