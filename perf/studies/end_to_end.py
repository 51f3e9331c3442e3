"""How long does a training step take, phase by phase, and what does a warm-up change?"""

import statistics
import timeit
from pathlib import Path
from typing import Any

import click

from perf.studies.document import document, heading, out_option, write
from perf.studies.lm import (
    ON_A_CPU,
    Setting,
    device_kind,
    largest_that_fits,
    model_options,
    rows_of,
    settings_of,
    synchronize,
)

PHASES = ("forward", "backward", "optimizer")


@click.command()
@model_options
@click.option("--warm-up", default=5, show_default=True, type=click.IntRange(0), help="Steps that do not count.")
@click.option("--steps", default=10, show_default=True, type=click.IntRange(2), help="Steps that count.")
@out_option
def command(warm_up: int, steps: int, out: Path | None, **options: Any) -> None:
    """How long does a training step take, phase by phase? All sizes on a GPU: two minutes; tiny on a CPU: seconds.

    \b
    python -m perf study end-to-end --size small --size medium --context 256 --precision bf16

    As the course asks: wall time of forward, backward and optimizer with the device synchronized after each, mean and
    standard deviation over --steps after --warm-up. A size that does not fit is a row with the memory it asked for.
    """
    settings = settings_of(**options)
    for setting in settings:
        if setting.variant.endswith("cuda_graph"):
            raise click.BadParameter(
                f"{setting.variant} was given; allowed: variants with phases, since a CUDA graph holds a whole step",
                param_hint="--variant",
            )
    rows = list(rows_of(settings, lambda train, setting: measure(train, setting, warm_up, steps)))
    whole = document(device_kind(), rows)
    click.echo(heading(whole))
    click.echo(f"Batch {options['batch']}, {warm_up} warm-up steps, mean ± standard deviation of {steps} steps, ms")
    click.echo(table(rows))
    for sentence in largest_that_fits(settings):
        click.echo(sentence)
    if device_kind() == "cpu":
        click.echo(ON_A_CPU)
    if out:
        write(out / "end-to-end.json", whole)
        draw(rows, out / "end-to-end.png", heading(whole))


def measure(train: Any, setting: Setting, warm_up: int, steps: int) -> dict[str, Any]:
    """Seconds of every phase of every counted step, and peak allocated bytes of all of them on a GPU."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seconds = [phases_of(train) for _ in range(warm_up + steps)][warm_up:]
    found: dict[str, Any] = {f"{phase}_s": [one[phase] for one in seconds] for phase in PHASES}
    if torch.cuda.is_available():
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return found


def phases_of(train: Any) -> dict[str, float]:
    """Wall seconds of each phase of one step."""
    found = {}
    train.optimizer.zero_grad(set_to_none=True)
    synchronize()
    begin = timeit.default_timer()
    loss = train.forward()
    synchronize()
    found["forward"] = timeit.default_timer() - begin
    begin = timeit.default_timer()
    train.backward(loss)
    synchronize()
    found["backward"] = timeit.default_timer() - begin
    begin = timeit.default_timer()
    train.optimizer_step()
    synchronize()
    found["optimizer"] = timeit.default_timer() - begin
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """For a terminal; constant columns are left out."""
    from tabulate import tabulate

    shown = []
    for row in rows:
        cells = {axis: row[axis] for axis in Setting.AXES}
        if row["status"] == "ok":
            for phase in PHASES:
                cells[phase] = mean_and_deviation(row[f"{phase}_s"])
            steps = [sum(step) for step in zip(*(row[f"{phase}_s"] for phase in PHASES), strict=True)]
            cells["step"] = mean_and_deviation(steps)
            if "peak_bytes" in row:
                cells["peak, GiB"] = f"{row['peak_bytes'] / 2**30:.2f}"
                if "predicted_bytes" in row:
                    cells["predicted"] = f"{row['predicted_bytes'] / 2**30:.2f}"
        else:
            cells["forward"] = row["status"]
        shown.append(cells)
    return tabulate(shown, headers="keys", disable_numparse=True)


def mean_and_deviation(seconds: list[float]) -> str:
    """In milliseconds."""
    return f"{statistics.mean(seconds) * 1e3:.2f} ± {statistics.stdev(seconds) * 1e3:.2f}"


def draw(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Stacked bars, a bar per setting, with the deviation of the whole step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    timed = [row for row in rows if row["status"] == "ok"]
    if not timed:
        return
    varied = [axis for axis in Setting.AXES if axis == "size" or len({row[axis] for row in timed}) > 1]
    labels = ["\n".join(str(row[axis]) for axis in varied) for row in timed]
    places = range(len(timed))
    figure, axes = plt.subplots(figsize=(max(4.0, 0.9 * len(timed) + 2), 3.6), layout="constrained")
    bottom = [0.0] * len(timed)
    for phase in PHASES:
        heights = [statistics.mean(row[f"{phase}_s"]) * 1e3 for row in timed]
        axes.bar(places, heights, bottom=bottom, label=phase, width=0.6)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    deviations = [
        statistics.stdev(map(sum, zip(*(row[f"{phase}_s"] for phase in PHASES), strict=True))) * 1e3 for row in timed
    ]
    axes.errorbar(places, bottom, yerr=deviations, fmt="none", color="black", capsize=3)
    axes.set_xticks(places, labels, fontsize=8)
    axes.set_ylabel("ms a step")
    axes.set_title(title, fontsize=8)
    figure.legend(fontsize=8, loc="outside right upper")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
