"""What does a warm-up change? The same steps from the first one on, in a fresh process, with ever more left out."""

import concurrent.futures
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

import click

from perf.harness import working_tree
from perf.harness.status import describe
from perf.studies import figures
from perf.studies.document import document, heading, out_option, text_table, write
from perf.studies.end_to_end import mean_and_deviation
from perf.studies.lm import ON_A_CPU, Models, Setting, bench, device_kind, model_options, rows_of
from perf.workloads.transformer_training import PHASES, Training


@click.command(name="warm-up")
@model_options()
@click.option("--warm-up", "warm_ups", multiple=True, type=click.IntRange(0), help="Default: 0, 1, 2 and 5.")
@click.option("--steps", default=10, show_default=True, type=click.IntRange(2), help="Steps that count.")
@out_option
def command(models: Models, warm_ups: tuple[int, ...], steps: int, out: Path) -> None:
    """What do 0, 1, 2 or 5 warm-up steps change? A process for each size: ten seconds each.

    The first steps of a process load kernels, create handles and workspaces, and fill the allocator; one of them among
    ten counted steps moves the mean by more than most changes of code do, and the deviation by far more.
    """
    working_tree.make_importable()
    counts = sorted(set(warm_ups or (0, 1, 2, 5)))
    rows = []
    for setting in models.settings(phases=True):
        # A process of its own: what the size before has loaded would warm this one up.
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            rows += fresh.submit(first_steps, setting, max(counts) + steps).result()
    whole = document(device_kind(), rows)
    click.echo(heading(whole))
    click.echo(f"Batch {models.batch}, mean ± standard deviation of {steps} steps after as many as named, ms")
    click.echo(table(rows, counts, steps))
    for sentence in answers(rows, counts, steps):
        click.echo(sentence)
    if device_kind() == "cpu":
        click.echo(ON_A_CPU)
    write(out / "warm-up.json", whole)
    draw(rows, out / "warm-up.png", heading(whole))


def first_steps(setting: Setting, count: int) -> list[dict[str, Any]]:
    """Seconds of each phase of the first `count` steps of this process."""

    def measure(training: Training, _: Setting) -> dict[str, Any]:
        seconds, _peak = bench().laps(training.phases(), count)
        return {f"{phase}_s": [one[phase] for one in seconds] for phase in PHASES}

    return list(rows_of([setting], measure))


def table(rows: list[dict[str, Any]], counts: list[int], steps: int) -> str:
    """A row per size and warm-up."""
    shown = []
    for row in rows:
        for count in counts:
            cells = {"size": row["size"], "context": row["context"], "warm-up": count}
            if row["status"] == "ok":
                cells |= {phase: mean_and_deviation(row[f"{phase}_s"][count : count + steps]) for phase in PHASES}
            shown.append(cells | ({} if row["status"] == "ok" else {"forward": describe(row)}))
    return text_table(shown)


def answers(rows: list[dict[str, Any]], counts: list[int], steps: int) -> list[str]:
    """One sentence per size, from its numbers."""
    said = []
    for row in rows:
        if row["status"] != "ok":
            continue
        whole = [sum(step) for step in zip(*(row[f"{phase}_s"] for phase in PHASES), strict=True)]
        settled = statistics.median(whole[max(counts) :])
        near = [all(one < 1.1 * settled for one in whole[index : index + 3]) for index in range(len(whole) - 2)]
        after = f"from step {near.index(True) + 1} on three in a row are" if any(near) else "no three in a row are"
        first = f"the first step takes {whole[0] / settled:.1f} times a settled one"
        said.append(f"{row['size']}: {first}; {after} within 10 % of it.")
    return said


def draw(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Time of each step from the first on, over the settled step."""
    figure, axes = figures.subplots(figsize=(5.5, 3.4))
    for row in rows:
        if row["status"] == "ok":
            whole = [sum(step) for step in zip(*(row[f"{phase}_s"] for phase in PHASES), strict=True)]
            settled = statistics.median(whole[len(whole) // 2 :])
            axes.plot(range(1, len(whole) + 1), [one / settled for one in whole], marker="o", ms=3, label=row["size"])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("step of the process")
    axes.set_ylabel("time / settled time")
    axes.set_title(title, fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figures.save(figure, path)
