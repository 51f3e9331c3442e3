"""Time a training step phase by phase."""

import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import click

from perf.harness.status import describe, words
from perf.options import Count
from perf.studies import figures
from perf.studies.device import bench, device_kind
from perf.studies.document import heading, kept, out_option, present
from perf.studies.lm import WITH_PHASES, Models, Setting, largest_that_fits, model_options, rows_of
from perf.studies.rows import Row, differing, grouped
from perf.studies.workspaces import workspaces
from perf.units import GIB, mib
from perf.workloads.transformer_training import PHASES, Training


@click.command()
@model_options(allowed={"variant": WITH_PHASES})
@click.option("--warm-up", default=5, show_default=True, type=Count(0), help="Steps that do not count.")
@click.option("--steps", default=10, show_default=True, type=Count(2), help="Steps that count.")
@out_option
def command(models: Models, warm_up: int, steps: int, out: Path) -> None:
    """Time a training step phase by phase. All sizes on a GPU: two minutes; tiny on a CPU: seconds.

    \b
    python -m perf study end-to-end --size small --size medium --context 256 --precision bf16

    The course's measurement: wall time of forward, backward and optimizer, the device synchronized after each; mean and
    standard deviation over --steps after --warm-up. A size that does not fit is a row with the allocation that failed.
    """
    settings = models.settings()
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
    """Draw a panel for each size, with its own scale, and in it a bar for each row: its phases, or its status."""
    if not any(row["status"] == "ok" for row in rows):
        return
    named = differing(rows, Setting.AXES[1:], always=("context",))
    by_size = {size: mine for (size,), mine in grouped(rows, "size")}
    figure, panels = figures.panels_of_bars({size: len(mine) for size, mine in by_size.items()})
    for size, axes in panels.items():
        mine = by_size[size]
        labels = [" ".join(str(row[axis]) for axis in named) for row in mine]
        nothing = {f"{phase}_s": [0.0] for phase in PHASES}
        timed = [row if row["status"] == "ok" else nothing for row in mine]
        means = {phase: [statistics.mean(row[f"{phase}_s"]) * 1e3 for row in timed] for phase in PHASES}
        ends = figures.stacked_bars(axes, labels, means)
        deviations = [statistics.stdev(step_seconds(row)) * 1e3 if row is not nothing else math.nan for row in timed]
        axes.errorbar(ends, range(len(mine)), xerr=deviations, fmt="none", color="black", capsize=2, lw=1)
        for place, row in enumerate(mine):
            if row["status"] != "ok":
                style = {"xytext": (4, 0), "textcoords": "offset points", "fontsize": 7, "color": "0.4"}
                axes.annotate(words(row["status"]), (0, place), va="center", **style)
        axes.set_ylabel(", ".join(named), fontsize=8)
    axes.set_xlabel("ms a step", fontsize=8)
    figures.legend_below(figure)
    figures.save(figure, path, title)


def step_seconds(row: Row) -> list[float]:
    """Return the seconds of each whole step."""
    return [sum(step) for step in zip(*(row[f"{phase}_s"] for phase in PHASES), strict=True)]
