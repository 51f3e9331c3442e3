"""Measure what sharding the optimizer's state saves and costs."""

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.harness.status import describe
from perf.studies import figures
from perf.studies.cases import measured_rows
from perf.studies.document import heading, kept, out_option, present
from perf.studies.parallel.ranked import Steps, step_options
from perf.studies.rows import Row
from perf.studies.speedups import factor
from perf.units import GIB
from perf.workloads.closed_forms import peak_state_bytes
from perf.workloads.rank_step import POINTS
from perf.workloads.sharded_optimizer import SHARDINGS


@click.command()
@click.option("--sharding", "shardings", multiple=True, type=click.Choice(SHARDINGS), help="Default: all.")
@step_options()
@out_option
def command(steps: Steps, shardings: tuple[str, ...], out: Path) -> None:
    """Measure what sharding the optimizer's state saves and costs. Three minutes on two GPUs.

    \b
    python -m perf study sharding --size xl --world-size 2

    AdamW replicated on every rank (none), our sharded optimizer after an all-reduce (sharded, 3P elements sent) or with
    gradients reduced to their owners (sharded_reducing, 2P), and torch's ZeroRedundancyOptimizer. Peak memory after
    initialization, before the optimizer's step and after it, beside the states by formula: 16P bytes whole, 8P + 8P/n
    sharded (sharded_reducing too: at the peak no gradient is reduced yet).
    """
    device = steps.device
    settings = [{"sharding": sharding} | where for where, sharding in itertools.product(steps, shardings or SHARDINGS)]
    whole = kept(measured_rows("sharded_optimizer", settings, device), device, out / "sharding.json")
    present(whole, f"Step: median of the slowest rank; {steps}", shown(whole["rows"]), answers(whole["rows"]))
    draw(whole["rows"], out / "sharding.png", heading(whole))


def shown(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    table = []
    for row in rows:
        cells: Row = {"size": row["size"], "context_length": row["context_length"], "sharding": row["sharding"]}
        cells |= {"ranks": row["world_size"], "step, ms": describe(row)}
        if row["status"] == "ok":
            facts = row["facts"]
            cells["step, ms"] = f"{statistics.median(row['samples_s']) * 1e3:.2f}"
            cells |= {_TITLES[name]: f"{facts[name] / GIB:.2f}" for name in POINTS if name in facts}
            cells["state, GiB"] = f"{facts['optimizer_bytes'] / GIB:.4g}"
            cells["states by formula"] = (
                f"{peak_state_bytes(row['size'], row['world_size'], row['sharding']) / GIB:.4g}"
            )
            sent = facts.get("communicated_bytes")
            cells["MB by optimizer"] = f"{sent / 1e6:.1f}" if sent else "-"
        table.append(cells)
    return table


_TITLES = {name: f"{name.removesuffix('_bytes').replace('_', ' ')}, GiB" for name in POINTS}


def answers(rows: list[Row]) -> Iterator[str]:
    """Compare the time, and the state of one rank, with the replicated optimizer."""
    whole = {_cell(row): row for row in rows if row["sharding"] == "none" and row["status"] == "ok"}
    for row in rows:
        base = whole.get(_cell(row))
        if row["status"] != "ok" or base is None or row is base:
            continue
        speedup = statistics.median(base["samples_s"]) / statistics.median(row["samples_s"])
        share = row["facts"]["optimizer_bytes"] / base["facts"]["optimizer_bytes"]
        yield (
            f"{row['size']}, context {row['context_length']}, {row['world_size']} ranks: {row['sharding']} is "
            f"{factor(speedup)} as fast as a step with the whole state, and holds {share:.1%} of it."
        )


def _cell(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("size", "context_length", "world_size"))


def draw(rows: list[Row], path: Path, title: str) -> None:
    """Plot the memory of a rank: parameters, optimizer state, and on a GPU the rest of the peak."""
    timed = [row for row in rows if row["status"] == "ok"]
    if not timed:
        return
    labels = [f"{row['size']} {row['context_length']}, {row['world_size']} ranks: {row['sharding']}" for row in timed]
    parts = {
        "parameters": [row["facts"]["parameter_bytes"] / GIB for row in timed],
        "optimizer's state": [row["facts"]["optimizer_bytes"] / GIB for row in timed],
    }
    if all("after_step_bytes" in row["facts"] for row in timed):
        peaks = [max(row["facts"][name] for name in POINTS) / GIB for row in timed]
        known = zip(peaks, *parts.values(), strict=True)
        parts["gradients, activations"] = [peak - parameters - state for peak, parameters, state in known]
    figure, axes = figures.subplots(figsize=(7.0, 1.3 + 0.24 * len(timed)))
    figures.stacked_bars(axes, labels, parts)
    axes.set_xlabel("GiB a rank")
    figures.legend_below(figure)
    figures.save(figure, path, title)
