"""Create and save figures without pyplot, whose state is global."""

import io
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


def set_title(figure: Any, title: str) -> None:
    """Set the title of a whole figure: what was measured on what, in lines no wider than the figure."""
    figure.suptitle(title, fontsize=8, wrap=True)


def save(figure: Any, path: Path) -> None:
    """Write the figure as a PNG. Raises `click.ClickException` with one line if it cannot be written."""
    from PIL import Image

    drawn, content = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    Image.open(drawn).convert("RGB").quantize(COLORS).save(content, format="png", optimize=True)
    write_aside(path, content.getvalue())
