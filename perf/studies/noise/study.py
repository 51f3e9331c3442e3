"""Split the scatter of measurements of the same code by source: time, allocation, process."""

import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import click

from perf.harness import profiler, working_tree
from perf.harness.case import Case
from perf.harness.device import missing_device
from perf.harness.suite import cases_of
from perf.selection import sound_classes
from perf.studies.document import heading, kept, out_option, tiny_option
from perf.studies.fresh_process import FreshProcess
from perf.studies.noise import process
from perf.studies.progress import progress
from perf.studies.rows import Row
from perf.tables import text_table

CASES = (  # from 4 us to 10 ms: compute, memory, launch and host-bound
    "controls.Controls('matmul', 'cold')",
    "controls.Controls('launch', 'cold')",
    "controls.Clocks('linears', 'gpu_wall')",
    "attention.FlashAttention(1024, 64, 'bfloat16', 'forward', 'triton')",
    "attention.FlashAttention(8192, 64, 'bfloat16', 'forward', 'triton')",
    "attention.FlashAttention(16384, 128, 'bfloat16', 'backward', 'triton')",
    "attention.FlashAttention(8192, 64, 'float32', 'forward', 'triton')",
    "attention.MultiHeadAttention(32768, 2048, 16384, 64, True, 'bfloat16', 'forward', 'triton')",
    "attention.MultiHeadAttention(32768, 2048, 512, 64, True, 'bfloat16', 'backward', 'triton')",
    "attention.MultiHeadAttention(32768, 2048, 16384, 128, True, 'bfloat16', 'forward', 'sdpa_cudnn')",
)
TINY_CASES = 3
"""The number of tiny cases, the first ones: controls."""

SAMPLES = 40
ALLOCATIONS, PASSES = 6, 3  # of each process of the crossed design
VISITS = 8  # of each pair of processes


@click.command()
@tiny_option
@click.option("--processes", type=click.IntRange(2, 20), help="Processes one at a time. Default: 5; 2 if tiny.")
@click.option("--pairs", type=click.IntRange(1, 20), help="Pairs of processes in turn. Default: 3; 1 if tiny.")
@out_option
def command(size: str | None, processes: int | None, pairs: int | None, out: Path) -> None:
    """Split the scatter of measurements of the same code by source. Needs a GPU; takes 6 minutes.

    Ten cases, with several allocations in each of several processes, visited repeatedly: how much of the noise comes
    from the time, the allocation and the process, and how much is left of A - B where A and B alternate sample by
    sample, on the same tensors in one process or in two processes.
    """
    import pandas

    if reason := missing_device("cuda"):
        raise click.ClickException(reason)
    os.environ.update(profiler.ENVIRONMENT)
    working_tree.make_importable()
    cases = _cases()[: TINY_CASES if size else None]
    processes, pairs = processes or (2 if size else 5), pairs or (1 if size else 3)

    def rows() -> Iterator[Row]:
        with progress(total=len(cases) * (processes + pairs), unit="case") as bar:
            for number in range(processes):
                yield from ({"design": "crossed", "process": number} | row for row in _crossed(cases, number, bar))
            for number in range(pairs):
                yield from ({"design": "two processes", "process": number} | row for row in _in_turn(cases, bar))

    whole = kept(rows(), "cuda", out / "noise.json")
    click.echo(heading(whole))
    measured = pandas.DataFrame(whole["rows"])
    for design, title, table in (
        ("crossed", f"One process at a time: {processes} x {ALLOCATIONS} allocations x {PASSES} visits", crossed_table),
        ("two processes", f"Two processes in turn, one sample each: {pairs} pairs x {VISITS} visits", in_turn_table),
    ):
        click.echo(f"\n{title}; {SAMPLES} samples an arm, both arms the same code; % of the median")
        cells = list(table(measured[measured.design == design]))
        click.echo(text_table(cells))


def crossed_table(rows: Any) -> Iterator[dict[str, str]]:
    """Yield the standard deviations of each case by source; `rows` has case, process, allocation, pass, a, b (s)."""
    for case, mine in rows.groupby("case", sort=False):
        scale = 100 / mine.a.mean()
        by_allocation = mine.groupby(["process", "allocation"]).a
        visit_variance = by_allocation.var().mean()
        means = by_allocation.mean()
        between = means.groupby("process").var().mean() - visit_variance / PASSES
        difference = mine.a - mine.b
        yield {
            "case": case,
            "median": f"{mine.a.median() * 1e6:.1f} us",
            "SD of a visit (time)": f"{scale * visit_variance**0.5:.2f}",
            "of an allocation": f"{scale * max(between, 0.0) ** 0.5:.2f}",
            "of process means": f"{scale * means.groupby('process').mean().std():.2f}",
            "of A - B": f"{scale * difference.std():.2f}",
            "mean A - B": f"{scale * difference.mean():+.2f}",
        }


def in_turn_table(rows: Any) -> Iterator[dict[str, str]]:
    """Yield the differences A - B of each case where the arms are processes: over visits, and the mean of each pair."""
    for case, mine in rows.groupby("case", sort=False):
        scale = 100 / mine.a.mean()
        difference = mine.a - mine.b
        by_pair = difference.groupby(mine.process).mean()
        yield {
            "case": case,
            "median": f"{mine.a.median() * 1e6:.1f} us",
            "SD of A - B": f"{scale * difference.std():.2f}",
            "mean A - B of each pair": "  ".join(f"{scale * mean:+.2f}" for mean in by_pair),
        }


def _cases() -> list[Case]:
    every = {case.key: case for _, cls in sound_classes() for case in cases_of(cls())}
    return [every[key] for key in CASES]


def _crossed(cases: list[Case], seed: int, bar: Any) -> Iterator[Row]:
    with FreshProcess(process.__name__) as child:
        for case in cases:
            rows = _ask(child, process.visits, case, ALLOCATIONS, PASSES, SAMPLES, seed)
            yield from ({"case": case.key} | row for row in rows)
            bar.update()


def _in_turn(cases: list[Case], bar: Any) -> Iterator[Row]:
    with FreshProcess(process.__name__) as first, FreshProcess(process.__name__) as second:
        arms = first, second
        for case in cases:
            for arm in arms:
                _ask(arm, process.prepare, case)
            for number in range(VISITS):
                samples: list[list[float]] = [[], []]
                for turn in range(SAMPLES):
                    for index in (0, 1) if turn % 2 == 0 else (1, 0):
                        samples[index] += _ask(arms[index], process.take, 1)
                a, b = map(statistics.median, samples)
                yield {"case": case.key, "pass": number, "a": a, "b": b}
            bar.update()


def _ask(child: FreshProcess, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return child.ask(function, *arguments)
    except BrokenProcessPool:
        raise click.ClickException("a measuring process died; its output is above") from None
