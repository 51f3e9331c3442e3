"""Create and save figures without pyplot, whose state is global."""

import io
from pathlib import Path
from typing import Any

from perf.files import write_aside

DPI = 110


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, as `pyplot.subplots` does."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Any, path: Path) -> None:
    """Write the figure as a PNG. Raises `click.ClickException` with one line if it cannot be written."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    write_aside(path, content.getvalue())
