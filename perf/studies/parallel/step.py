"""Compare a training step on several GPUs with another way to share its work."""

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
from perf.harness.ranks import RankClock, Ranks
from perf.harness.spans import Span, covered_s
from perf.harness.status import GOES_ON, describe, refusals
from perf.options import Named
from perf.studies.device import Device, bench
from perf.studies.document import document, heading, out_option, present, write_in_parts
from perf.studies.lm import VARIANTS
from perf.studies.parallel.ranked import UNSCALED, Steps, running_ranks, step_options
from perf.studies.progress import progress
from perf.studies.rows import Row, grouped, refusal, refused
from perf.studies.speedup_figure import draw as draw_speedups
from perf.studies.speedups import (
    FEWEST,
    Effort,
    best,
    cost_with_interval,
    effort_options,
    milliseconds,
    processes_for_speedup,
    speedup_of,
    with_interval,
)
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
"""Share of a step from which on the step waits for the GPU alone."""


def arm_of(name: str) -> Way:
    """Return the way that an arm's name stands for. Raises `ValueError` for an unknown name."""
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
    raise ValueError(f"{name!r} was given; allowed: {grammar}")


def other_arm(name: str) -> Way | None:
    """Return the way that an arm's name stands for, and None for `ALONE`. Raises `ValueError` for an unknown name."""
    return None if name == ALONE else arm_of(name)


@click.command()
@step_options(UNSCALED, VARIANTS)
@click.option(
    "--ours",
    multiple=True,
    type=Named(arm_of),
    help=f"ddp/STRATEGY[/MIB] or sharding/SHARDING. Default: {', '.join(OURS)}.",
)
@click.option(
    "--against", multiple=True, type=Named(other_arm), help=f"The same, or {ALONE}. Default: {', '.join(AGAINST)}."
)
@effort_options(rounds=12, processes=6, on_a_cpu=6)
@out_option
def command(steps: Steps, ours: tuple[str, ...], against: tuple[str, ...], effort: Effort, out: Path) -> None:
    """Compare a step on several GPUs with another way to share it. Ten minutes on two.

    \b
    python -m perf study parallel-step --world-size 2 --context 512 --batch 16
    python -m perf study parallel-step --ours sharding/sharded_reducing --against sharding/torch
    python -m perf study parallel-step --ours ddp/overlapped --ours ddp/torch --against alone

    The same ranks hold two arms, which take single steps in turn, A B B A, each timed by its slowest rank; then again
    in fresh processes: three, and as many more as their scatter demands for a narrow 95 % interval of every speed-up.
    busy is the share of a step in which the GPU computes or communicates: where it is low, it waits for the host, and
    a larger --batch or --context helps, or for what another GPU is yet to copy. MIB is the size of a bucket, ours or
    torch's (default 25). Against "alone", an arm's own step without communication, the study gives the cost of
    communication.
    """
    pairs = {
        (mine, other): (arm_of(mine), other_arm(other) or alone(mine))
        for mine, other in itertools.product(ours or OURS, against or AGAINST)
    }
    compare_pairs(pairs, steps, effort, out / "parallel-step")


def compare_pairs(pairs: Pairs, steps: Steps, effort: Effort, path: Path, part: str = "step") -> None:
    """Measure all pairs at that part of all steps; write `path`.json and .png, print the table and the answers."""
    device = steps.device
    rows = [
        where
        | {"ours": mine, "against": other, "status": "ok"}
        | {name: [] for name in ("ours_s", "against_s", "ours_busy", "against_busy")}
        for where, (mine, other) in itertools.product(steps, pairs)
    ]
    states = ({path.with_suffix(".json"): document(device, rows)} for _ in measured(rows, pairs, device, effort))
    write_in_parts(states)
    whole = document(device, rows)
    title = f"{part.capitalize()}, ms of the slowest rank: {steps}"
    present(whole, title, shown(whole["rows"]), answers(rows, effort.half_width, part))
    draw(rows, path.with_suffix(".png"), heading(whole))


def draw(rows: list[Row], path: Path, title: str) -> None:
    """Plot the speed-ups."""
    draw_speedups(rows, "{size}, {context_length}, {world_size} ranks: {ours}".format_map, path, title)


def alone(name: str) -> Way:
    """Return that arm's step without communication. Raises `click.ClickException` for one that always communicates."""
    workload, own = arm_of(name)
    if workload != "data_parallel":
        raise click.ClickException(f"{name!r} was given against {ALONE!r}; allowed: ddp/STRATEGY[/MIB]")
    return workload, own | {"mode": "alone"}


def measured(rows: list[Row], pairs: Pairs, device: Device, effort: Effort) -> Iterator[None]:
    """Add samples to `rows`, in one set of processes after another."""

    def wanted(rows: list[Row]) -> int:
        if any(row["status"] == "throttled" for row in rows):
            return effort.processes
        return max((processes_for_speedup(row, effort) for row in rows if row["status"] == "ok"), default=FEWEST)

    def in_processes(_: Sequence[Any], number: int) -> Iterator[None]:
        with running_ranks(device) as ranks_of:
            for row in rows:
                bar.set_postfix_str(f"{row['size']} {row['context_length']} {row['ours']} {row['against']}")
                if row["status"] in GOES_ON:
                    try:
                        _add(row, ranks_of(row["world_size"]), pairs, device, effort.rounds, number)
                    except refusals(RuntimeError) as error:
                        row |= refusal(error)
                bar.update()
        yield

    with progress(total=effort.processes * len(rows), unit="pair") as bar:
        yield from compare([rows], Pilot(FEWEST, effort.processes, wanted), in_processes)


def _add(row: Row, ranks: Ranks, pairs: Pairs, device: Device, rounds: int, number: int) -> None:
    """Add one process's samples; every second process builds and steps the other arm first, and profiles it."""
    ways = dict(zip(("ours", "against"), pairs[row["ours"], row["against"]], strict=True))
    names = ("ours", "against") if number % 2 == 0 else ("against", "ours")
    axes = ("size", "context_length", "batch", "world_size", "precision", "variant")

    def build(place: int) -> Workload:
        workload, own = ways[names[place]]
        params = {axis: row[axis] for axis in axes} | own
        return ranks.build(Case("study", workload, params, device, "ranks", "warm"), arm=place)

    arms = [
        ComparedArm(name, partial(build, place), partial(RankClock, ranks, place), is_checked=not row["ours_s"])
        for place, name in enumerate(names)
    ]
    replies = bench().take_turns(arms, "warm", lambda round_s: rounds, all_or_none=True)
    if failed := next((reply for reply in replies.values() if reply["status"] != "ok"), None):
        if failed["status"] not in GOES_ON or not row["ours_s"]:
            row |= refused(failed)
        return
    row["status"] = "ok"
    row.pop("reason", None)
    for name in names:
        row[f"{name}_s"].append(replies[name]["samples_s"])
    if device == "cuda":
        row[f"{names[0]}_busy"].append(busy_s(ranks.spans()) / statistics.median(replies[names[0]]["samples_s"]))


def busy_s(spans: list[dict[str, list[Span]]]) -> float:
    """Return the seconds for which the least busy rank computes or communicates."""
    return min(covered_s((start, end) for kind in rank.values() for start, end in kind) for rank in spans)


def shown(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    table = []
    for row in rows:
        cells: Row = {"size": row["size"], "context": row["context_length"], "ranks": row["world_size"]}
        cells |= {"ours": row["ours"], "against": row["against"], "ours, ms": textwrap.shorten(describe(row), 60)}
        if row["status"] == "ok":
            cells |= {
                "ours, ms": f"{milliseconds(row, 'ours'):.2f}",
                "its ms": f"{milliseconds(row, 'against'):.2f}",
                "speed-up": with_interval(*speedup_of(row)),
                "processes": len(row["ours_s"]),
                "busy": share(row["ours_busy"]),
                "its busy": share(row["against_busy"]),
            }
        table.append(cells)
    return table


def share(busy: list[float]) -> str:
    """Format the busy share of a step, at most 100 %, since profiled steps are longer; "-" without a GPU."""
    return f"{min(1.0, statistics.median(busy)):.1%}" if busy else "-"


def answers(rows: list[Row], half_width: float, part: str = "step") -> Iterator[str]:
    """Compare every arm of ours with the best of the others, or with itself without communication."""
    timed = [row for row in rows if row["status"] == "ok"]
    cell = ("size", "context_length", "world_size", "ours")
    told = (row | {"beside_itself": row["against"] == ALONE} for row in timed)
    for (size, context, ranks, ours, beside_itself), mine in grouped(told, *cell, "beside_itself"):
        speedup, half, fastest = best(mine, speedup_of)
        where = f"{size}, context {context}, {ranks} ranks: {ours}"
        busy = list(itertools.chain.from_iterable(row["ours_busy"] for row in mine))
        is_idle = busy and statistics.median(busy) < BUSY
        waits = f" Its GPU is busy for {share(busy)} only: it waits for the host or for another GPU." if is_idle else ""
        if half > half_width:
            yield f"{where}: {with_interval(speedup, half)} is too wide for a verdict; raise --processes."
        elif beside_itself:
            yield f"{where}: communication adds {cost_with_interval(speedup, half)} to the {part}.{waits}"
        else:
            yield f"{where} is {with_interval(speedup, half)} as fast as the best of the others, {fastest}.{waits}"
