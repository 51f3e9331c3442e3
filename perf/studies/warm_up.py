"""Time the first steps of a fresh process, with more and more of them left out."""

import statistics
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import click
from matplotlib.ticker import LogLocator

from perf.harness import working_tree
from perf.harness.status import describe
from perf.options import Count
from perf.studies import figures
from perf.studies.device import device_kind
from perf.studies.document import heading, kept, out_option, present
from perf.studies.end_to_end import mean_and_deviation, measure, step_seconds
from perf.studies.fresh_process import DIED, FreshProcess
from perf.studies.lm import WITH_PHASES, Models, Setting, model_options, rows_of
from perf.studies.rows import Row
from perf.workloads.transformer_training import PHASES


@click.command(name="warm-up")
@model_options(allowed={"variant": WITH_PHASES})
@click.option("--warm-up", "warm_ups", multiple=True, type=Count(0), help="Default: 0, 1, 2 and 5.")
@click.option("--steps", default=10, show_default=True, type=Count(2), help="Steps that count.")
@out_option
def command(models: Models, warm_ups: tuple[int, ...], steps: int, out: Path) -> None:
    """Measure what 0, 1, 2 or 5 warm-up steps change. A process for each size: ten seconds each.

    The first steps of a process load kernels, create handles and workspaces, and fill the allocator. One of them among
    ten counted steps moves the mean by more than most changes of code do, and the deviation by far more.
    """
    working_tree.make_importable()
    counts = sorted(set(warm_ups or (0, 1, 2, 5)))
    measured = (row for setting in models.settings() for row in alone(setting, max(counts) + steps))
    whole = kept(measured, device_kind(), out / "warm-up.json")
    rows = whole["rows"]
    title = f"Batch {models.batch}, mean ± standard deviation of {steps} steps after each warm-up, ms"
    present(whole, title, shown(rows, counts, steps), answers(rows, max(counts)))
    draw(rows, max(counts), out / "warm-up.png", heading(whole))


def alone(setting: Setting, count: int) -> list[Row]:
    """Return the row of a size, measured in a process that no other size has warmed up."""
    with FreshProcess(__name__, "spawn") as fresh:
        try:
            return fresh.ask(first_steps, setting, count)
        except BrokenProcessPool:
            return [setting.axes() | DIED]


def first_steps(setting: Setting, count: int) -> list[Row]:
    """Return a row with the seconds of each phase of the first `count` steps of this process."""
    return list(rows_of([setting], lambda training, _: measure(training, 0, count)))


def shown(rows: list[Row], counts: list[int], steps: int) -> Iterator[Row]:
    """Yield the cells of each size and warm-up by column title."""
    for row in rows:
        for count in counts:
            cells = {"size": row["size"], "context": row["context"], "warm-up": count, "forward": describe(row)}
            if row["status"] == "ok":
                cells |= {phase: mean_and_deviation(row[f"{phase}_s"][count : count + steps]) for phase in PHASES}
            yield cells


def answers(rows: list[Row], settled_after: int) -> Iterator[str]:
    """Say for each size how long its first step takes, and when steps settle."""
    for row in rows:
        if row["status"] == "ok":
            steps = step_seconds(row)
            settled = statistics.median(steps[settled_after:])
            is_near = [abs(step / settled - 1) < 0.1 for step in steps]
            near = [all(is_near[index : index + 3]) for index in range(len(steps) - 2)]
            after = f"from step {near.index(True) + 1} on three in a row are" if any(near) else "no three in a row are"
            first = f"the first step takes {steps[0] / settled:.1f} times a settled one"
            yield f"{row['size']}: {first}; {after} within 10 % of it."


def draw(rows: list[Row], settled_after: int, path: Path, title: str) -> None:
    """Plot the time of each step from the first on, over that of a settled step."""
    figure, axes = figures.subplots(figsize=(5.5, 3.4))
    for row in rows:
        if row["status"] == "ok":
            steps = step_seconds(row)
            settled = statistics.median(steps[settled_after:])
            axes.plot(range(1, len(steps) + 1), [step / settled for step in steps], marker="o", ms=3, label=row["size"])
    axes.set(yscale="log", xlabel="step of the process", ylabel="time / settled time")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figures.save(figure, path, title)
