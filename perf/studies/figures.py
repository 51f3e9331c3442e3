"""Create and save figures without pyplot, whose state is global."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.files import write_aside

DPI = 110

COLORS = 256
"""Of the palette of a file, which takes a third of the bytes of one without."""


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, as `pyplot.subplots` does."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def panels_of_bars(counts: Mapping[str, int]) -> tuple[Any, dict[str, Any]]:
    """Return a figure, and by title the axes of its panels, one below another, for so many horizontal bars each."""
    heights = [0.6 + 0.2 * count for count in counts.values()]
    figure, grid = subplots(len(counts), 1, figsize=(8.0, 0.9 + sum(heights)), height_ratios=heights, squeeze=False)
    for axes, title in zip(grid[:, 0], counts, strict=True):
        axes.set_title(title, fontsize=9)
    return figure, dict(zip(counts, grid[:, 0], strict=True))


def stacked_bars(
    axes: Any, labels: Sequence[str], parts: Mapping[str, Sequence[float]], colors: Sequence[str] = ("C0", "C1", "C2")
) -> list[float]:
    """Draw a horizontal bar for each label, the first on top, of all parts end to end; return the ends."""
    ends = [0.0] * len(labels)
    for (part, widths), color in zip(parts.items(), colors, strict=False):
        axes.barh(range(len(labels)), widths, left=ends, label=part, color=color)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(labelsize=8)
    return ends


def shortened(name: str, most: int = 70) -> str:
    """Return the end of a name that is longer: of a user's module:function the function."""
    return name if len(name) <= most else f"...{name[3 - most :]}"


def legend_below(figure: Any, columns: int | None = None) -> None:
    """Add one legend for all panels, by default in one line."""
    keys: dict[str, Any] = {}
    for axes in figure.axes:
        keys |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(keys.values(), keys, fontsize=8, loc="outside lower center", ncols=columns or len(keys))


def legend_above(axes: Any) -> None:
    """Add a panel's legend above it in one line, where it hides nothing. Nothing if no part has a label."""
    if keys := axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(keys), frameon=False)


def save(figure: Any, path: Path, title: str = "") -> None:
    """Write the figure as a PNG. Raises `click.ClickException` with one line if it cannot be written.

    `title` says what was measured on what, in lines no wider than the figure.
    """
    from PIL import Image

    if title:
        figure.suptitle(title, fontsize=8, wrap=True)
    drawn, content = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    Image.open(drawn).convert("RGB").quantize(COLORS).save(content, format="png", optimize=True)
    write_aside(path, content.getvalue())
