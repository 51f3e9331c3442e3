"""How fast is a training step on several GPUs, beside another way to share its work?"""

import itertools
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from perf.harness.case import Case
from perf.harness.comparison import ComparedArm, Pilot, compare
from perf.harness.cuda_clocks import length_of_union
from perf.harness.ranks import RankClock, Ranks
from perf.harness.status import describe, refusals
from perf.options import Finite
from perf.studies.document import document, heading, out_option, text_table, write
from perf.studies.lm import ON_A_CPU, VARIANTS, bench, refusal, refused
from perf.studies.parallel.ranked import (
    UNSCALED,
    Device,
    Steps,
    held_ranks,
    step_options,
)
from perf.studies.ratio_figure import draw
from perf.studies.ratios import FEWEST, best, known, milliseconds, processes_for_speedup, speedup_of
from perf.workloads.data_parallel import STRATEGIES
from perf.workloads.sharded_optimizer import SHARDINGS
from perf.workloads.workload import Workload

OURS = ("ddp/bucketed/25", "ddp/overlapped")
AGAINST = ("ddp/torch/25", "ddp/torch/100", "ddp/torch_static/100")
ALONE = "alone"
"""Name of an arm's own step without communication."""

Way = tuple[str, dict[str, Any]]
"""A workload and its own params."""

Pairs = dict[tuple[str, str], tuple[Way, Way]]
"""Pairs of ways, by the names of both."""

BUSY = 0.95
"""Share of a step from which on the GPU, and not its host, is what the step waits for."""


@click.command()
@step_options(UNSCALED, VARIANTS)
@click.option("--ours", multiple=True, help=f"ddp/STRATEGY[/MIB] or sharding/SHARDING. Default: {', '.join(OURS)}.")
@click.option("--against", multiple=True, help=f"The same, or {ALONE}. Default: {', '.join(AGAINST)}.")
@click.option("--rounds", default=12, show_default=True, type=click.IntRange(2), help="Steps of each arm in a process.")
@click.option("--half-width", default=2.0, show_default=True, type=Finite(0), help="% that is narrow enough.")
@click.option("--processes", default=6, show_default=True, type=click.IntRange(2), help="At most, for each rank.")
@out_option
def command(
    steps: Steps,
    ours: tuple[str, ...],
    against: tuple[str, ...],
    rounds: int,
    half_width: float,
    processes: int,
    out: Path,
) -> None:
    """How fast is a step on several GPUs, beside another way to share it? Ten minutes on two.

    \b
    python -m perf study parallel-step --world-size 2 --context 512 --batch 16
    python -m perf study parallel-step --ours sharding/sharded_reducing --against sharding/torch
    python -m perf study parallel-step --ours ddp/overlapped --ours ddp/torch --against alone

    Two arms are held by the same ranks and take single steps in turn, A B B A, each timed by its slowest rank; then
    again in fresh processes: three, and as many more as by their scatter make the 95 % interval of every speed-up
    narrow enough. busy is the share of a step in which the GPU computes or communicates: where it is far from all, the
    host is what is timed, and a larger --batch or --context helps. MIB is the size of a bucket, ours or torch's
    (default 25). Against "alone", an arm's own step without communication, the study says what communication adds.
    """
    device = steps.device
    pairs = {
        (mine, other): (arm_of(mine), alone(mine) if other == ALONE else arm_of(other))
        for mine, other in itertools.product(ours or OURS, against or AGAINST)
    }
    rows = [
        where
        | {"ours": mine, "against": other, "status": "ok"}
        | {name: [] for name in ("ours_s", "against_s", "ours_busy", "against_busy")}
        for where, (mine, other) in itertools.product(steps, pairs)
    ]
    for whole in measured(rows, pairs, device, rounds, processes, half_width / 100):
        write(out / "parallel-step.json", document(device, whole))
    title = heading(document(device, rows))
    click.echo(title)
    click.echo(f"Whole step, ms of the slowest rank: {steps}")
    click.echo(text_table(shown(rows)))
    for sentence in answers(rows, half_width / 100):
        click.echo(sentence)
    if device == "cpu":
        click.echo(ON_A_CPU)
    where = "{size}, {context_length}, {world_size} ranks: {ours}"
    draw(rows, lambda row: where.format_map(row), out / "parallel-step.png", title)


def arm_of(name: str) -> Way:
    """Raises `click.ClickException` with one line for what is no arm."""
    kind, _, rest = name.partition("/")
    own, _, size = rest.partition("/")
    try:
        if kind == "ddp" and own in STRATEGIES and (bucket := float(size or 25)) > 0:
            return "data_parallel", {"strategy": own, "bucket_size_mb": bucket, "mode": "step"}
        if kind == "sharding" and own in SHARDINGS and not size:
            return "sharded_optimizer", {"sharding": own}
    except ValueError:
        pass
    grammar = f"ddp/{{{'|'.join(STRATEGIES)}}}[/MIB], sharding/{{{'|'.join(SHARDINGS)}}}"
    raise click.ClickException(f"{name!r} was given; allowed: {grammar}")


def alone(name: str) -> Way:
    """Return that arm's step without communication. Raises `click.ClickException` for one that always communicates."""
    workload, own = arm_of(name)
    if workload != "data_parallel":
        raise click.ClickException(f"{name!r} was given against {ALONE!r}; allowed: ddp/STRATEGY[/MIB]")
    return workload, own | {"mode": "alone"}


def measured(
    rows: list[dict[str, Any]],
    pairs: Pairs,
    device: Device,
    rounds: int,
    processes: int,
    half_width: float,
) -> Iterator[list[dict[str, Any]]]:
    """Add samples to `rows`; yield them as they stand after each set of processes."""
    from tqdm import tqdm

    def wanted(rows: list[dict[str, Any]]) -> int:
        timed = [row for row in rows if row["status"] == "ok"]
        return max((processes_for_speedup(row, half_width, processes) for row in timed), default=FEWEST)

    def in_processes(_: Sequence[Any], number: int) -> Iterator[list[dict[str, Any]]]:
        with held_ranks(device) as ranks_of:
            for row in rows:
                bar.set_postfix_str(f"{row['size']} {row['context_length']} {row['ours']} {row['against']}")
                if row["status"] == "ok":
                    try:
                        _add(row, ranks_of(row["world_size"]), pairs, device, rounds, number)
                    except refusals(RuntimeError) as error:
                        row |= refusal(error)
                bar.update()
        yield rows

    with tqdm(total=processes * len(rows), unit="pair", leave=False, disable=None) as bar:
        yield from compare([rows], Pilot(FEWEST, processes, wanted), in_processes)


def _add(row: dict[str, Any], ranks: Ranks, pairs: Pairs, device: Device, rounds: int, number: int) -> None:
    """Add one process' samples; every second one builds and steps the other arm first, and looks at its GPU."""
    ways = dict(zip(("ours", "against"), pairs[row["ours"], row["against"]], strict=True))
    names = ("ours", "against") if number % 2 == 0 else ("against", "ours")
    axes = ("size", "context_length", "batch", "world_size", "precision", "variant")

    def build(place: int) -> Workload:
        workload, own = ways[names[place]]
        params = {axis: row[axis] for axis in axes} | own
        return ranks.build(Case("study", workload, params, device, "ranks", "warm"), arm=place)

    arms = [
        ComparedArm(name, partial(build, place), partial(RankClock, ranks, place), is_checked=number == 0)
        for place, name in enumerate(names)
    ]
    replies = bench().take_turns(arms, "warm", lambda round_s: rounds, all_or_none=True)
    if failed := next((reply for reply in replies.values() if reply["status"] != "ok"), None):
        row |= refused(failed)
        return
    for name in names:
        row[f"{name}_s"].append(replies[name]["samples_s"])
    if device == "cuda":
        row[f"{names[0]}_busy"].append(busy_s(ranks.spans()) / statistics.median(replies[names[0]]["samples_s"]))


def busy_s(spans: list[dict[str, list[list[float]]]]) -> float:
    """Return the seconds for which the least busy rank computes or communicates."""
    return min(length_of_union(sorted((start, end) for kind in rank.values() for start, end in kind)) for rank in spans)


def shown(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The cells of each row by the title of their column."""
    found = []
    for row in rows:
        cells = {"size": row["size"], "context": row["context_length"], "ranks": row["world_size"]}
        cells |= {"ours": row["ours"], "against": row["against"]}
        if row["status"] == "ok":
            cells |= {
                "ours, ms": f"{milliseconds(row, 'ours'):.2f}",
                "its ms": f"{milliseconds(row, 'against'):.2f}",
                "speed-up": known(*speedup_of(row)),
                "processes": len(row["ours_s"]),
            }
            cells |= {words: share(row[f"{arm}_busy"]) for words, arm in (("busy", "ours"), ("its busy", "against"))}
        else:
            cells["ours, ms"] = textwrap.shorten(describe(row), 60)
        found.append(cells)
    return found


def share(busy: list[float]) -> str:
    """Of a step, at most all: the profiled one takes longer than those timed. "-" where no GPU was looked at."""
    return f"{min(1.0, statistics.median(busy)):.1%}" if busy else "-"


def answers(rows: list[dict[str, Any]], half_width: float) -> Iterator[str]:
    """For every model and arm of ours, how it stands to the best of the others, or to itself without communication."""
    timed = [row for row in rows if row["status"] == "ok"]
    cell = ("size", "context_length", "world_size", "ours")
    for (size, context, ranks, ours, beside_itself), group in itertools.groupby(
        timed, key=lambda row: (*(row[axis] for axis in cell), row["against"] == ALONE)
    ):
        mine = list(group)
        speedup, half, fastest = best(mine, speedup_of)
        where = f"{size}, context {context}, {ranks} ranks: {ours}"
        busy = [one for row in mine for one in row["ours_busy"]]
        bound = busy and statistics.median(busy) < BUSY
        host = f" Its GPU is busy for {share(busy)} only: this is the host's time." if bound else ""
        if half > half_width:
            yield f"{where}: {known(speedup, half)} is too wide for a verdict; more --processes."
        elif beside_itself:
            yield f"{where}: communication adds {1 / speedup - 1:.1%} ± {half:.1%} to the step.{host}"
        else:
            yield f"{where} is {known(speedup, half)} as fast as the best of the others, {fastest}.{host}"
