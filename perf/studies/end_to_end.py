"""Time a training step phase by phase."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.harness.status import describe
from perf.studies import figures
from perf.studies.document import heading, kept, out_option, present
from perf.studies.lm import Models, Setting, bench, device_kind, largest_that_fits, model_options, rows_of
from perf.studies.rows import Row
from perf.studies.workspaces import workspaces
from perf.units import GIB, mib
from perf.workloads.transformer_training import PHASES, Training

COLORS = ("C0", "C1", "C2")


@click.command()
@model_options()
@click.option("--warm-up", default=5, show_default=True, type=click.IntRange(0), help="Steps that do not count.")
@click.option("--steps", default=10, show_default=True, type=click.IntRange(2), help="Steps that count.")
@out_option
def command(models: Models, warm_up: int, steps: int, out: Path) -> None:
    """Time a training step phase by phase. All sizes on a GPU: two minutes; tiny on a CPU: seconds.

    \b
    python -m perf study end-to-end --size small --size medium --context 256 --precision bf16

    The course's measurement: wall time of forward, backward and optimizer, the device synchronized after each; mean and
    standard deviation over --steps after --warm-up. A size that does not fit is a row with the allocation that failed.
    """
    settings = models.settings(phases=True)
    measured = rows_of(settings, lambda training, _: measure(training, warm_up, steps))
    whole = kept(measured, device_kind(), out / "end-to-end.json")
    sentences = list(largest_that_fits(settings))
    if any("peak_bytes" in row and "predicted_bytes" in row for row in whole["rows"]):
        sentences.insert(0, about_peaks(workspaces()))
    title = f"Batch {models.batch}, {warm_up} warm-up steps, mean ± standard deviation of {steps} steps, ms"
    present(whole, title, shown(whole["rows"]), sentences)
    draw(whole["rows"], out / "end-to-end.png", heading(whole))


def measure(training: Training, warm_up: int, steps: int) -> Row:
    """Return the seconds of every phase of every counted step, and on a GPU the peak of allocated bytes."""
    seconds, peak_bytes = bench().laps(training.phases(), warm_up + steps)
    row: Row = {f"{phase}_s": [step[phase] for step in seconds[warm_up:]] for phase in PHASES}
    return row | ({} if peak_bytes is None else {"peak_bytes": peak_bytes})


def shown(rows: list[Row]) -> Iterator[Row]:
    """Yield the cells of each row by column title."""
    for row in rows:
        cells = {axis: row[axis] for axis in Setting.AXES}
        if row["status"] != "ok":
            yield cells | {"forward": describe(row)}
            continue
        cells |= {phase: mean_and_deviation(row[f"{phase}_s"]) for phase in PHASES}
        cells["step"] = mean_and_deviation(step_seconds(row))
        for title, name in (("peak, GiB", "peak_bytes"), ("predicted", "predicted_bytes")):
            if "peak_bytes" in row and name in row:
                cells[title] = f"{row[name] / GIB:.2f}"
        yield cells


def about_peaks(held: dict[str, int]) -> str:
    """Describe the bytes that are in a measured peak and not in its prediction."""
    before, product, backward = held.values()
    return (
        f"Peaks include cuBLAS's workspaces ({mib(product - before)} of the forward's thread, "
        f"{mib(backward - product)} of the backward's) and the allocator's rounding; predictions have neither."
    )


def mean_and_deviation(seconds: list[float]) -> str:
    """Format in milliseconds."""
    return f"{statistics.mean(seconds) * 1e3:.2f} ± {statistics.stdev(seconds) * 1e3:.2f}"


def draw(rows: list[Row], path: Path, title: str) -> None:
    """Draw a panel for each size, with its own scale: bars in a group for each context."""
    if not any(row["status"] == "ok" for row in rows):
        return
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        panels.setdefault(row["size"], []).append(row)
    varied = [axis for axis in Setting.AXES[2:] if len({row[axis] for row in rows}) > 1]
    label = max(len(_label(row, varied)) for row in rows)
    bars = max(map(len, panels.values()))
    # Inches: ten in all, a panel's axis, and the width of a legible bar.
    columns = max(1, min(3, len(panels), int(10 / (0.9 + 0.2 * bars))))
    lines = -(-len(panels) // columns)
    width, height = max(4.0, min(10.0, columns * (1.3 + 0.3 * bars))), 0.6 + lines * (2.5 + 0.06 * label)
    from matplotlib.patches import Rectangle

    figure, grid = figures.subplots(lines, columns, figsize=(width, height), squeeze=False)
    for axes, (size, mine) in zip(grid.flat, panels.items(), strict=False):
        _draw_panel(axes, mine, varied)
        axes.set_title(size, fontsize=9)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("ms a step", fontsize=8)
    figures.set_title(figure, title)
    keys = [Rectangle((0, 0), 1, 1, color=color) for color in COLORS]  # the first panel may have no bar
    figure.legend(keys, PHASES, fontsize=8, loc="outside lower center", ncols=len(PHASES))
    figures.save(figure, path)


def _draw_panel(axes: Any, rows: list[Row], varied: list[str]) -> None:
    """Draw a bar for each row with the deviation of its step, or its status where it has no times."""
    contexts = sorted({row["context"] for row in rows})
    grouped = [[row for row in rows if row["context"] == context] for context in contexts]
    begins = [sum(len(group) + 0.6 for group in grouped[:index]) for index in range(len(grouped))]
    bars = [
        (begin + index, row) for begin, group in zip(begins, grouped, strict=True) for index, row in enumerate(group)
    ]
    timed = [(place, row) for place, row in bars if row["status"] == "ok"]
    places = [place for place, _ in timed]
    bottom = [0.0] * len(timed)
    for phase, color in zip(PHASES, COLORS, strict=True):
        heights = [statistics.mean(row[f"{phase}_s"]) * 1e3 for _, row in timed]
        axes.bar(places, heights, bottom=bottom, color=color, width=0.85)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    deviations = [statistics.stdev(step_seconds(row)) * 1e3 for _, row in timed]
    axes.errorbar(places, bottom, yerr=deviations, fmt="none", color="black", capsize=2, lw=1)
    for place, row in bars:
        if row["status"] != "ok":
            axes.text(
                place, 0.02, row["status"].replace("_", " "), transform=axes.get_xaxis_transform(),
                rotation=90, ha="center", va="bottom", fontsize=7, color="0.4",
            )  # fmt: skip
    axes.set_xlim(-0.7, bars[-1][0] + 0.7)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    middles = [begin + (len(group) - 1) / 2 for begin, group in zip(begins, grouped, strict=True)]
    below = axes.secondary_xaxis(0)
    below.set_xticks(middles, contexts, fontsize=8)
    below.set_xlabel("context", fontsize=8)
    labels = [_label(row, varied) for _, row in bars]
    below.tick_params(length=0, pad=4)
    if varied:
        below.tick_params(pad=12 + 4.3 * max(map(len, labels)))  # in points: below the labels of the bars
        axes.set_xticks([place for place, _ in bars], labels, rotation=90, fontsize=7)
    else:
        axes.set_xticks([])


def _label(row: Row, varied: list[str]) -> str:
    return " ".join(str(row[axis]) for axis in varied)


def step_seconds(row: Row) -> list[float]:
    """Return the seconds of each whole step."""
    return [sum(step) for step in zip(*(row[f"{phase}_s"] for phase in PHASES), strict=True)]
