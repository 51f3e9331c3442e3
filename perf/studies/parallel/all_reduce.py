"""Time an all-reduce and compute its bandwidth."""

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

from perf.harness.status import describe
from perf.options import Count
from perf.studies import figures
from perf.studies.cases import measured_rows
from perf.studies.device import Device, device_kind
from perf.studies.document import heading, kept, out_option, present, tiny_option
from perf.studies.parallel.ranked import world_size_option, world_sizes_of
from perf.studies.rows import Row, grouped
from perf.workloads.closed_forms import bandwidths

BACKENDS = {"cuda": "NCCL", "cpu": "gloo"}


@click.command()
@tiny_option
@world_size_option
@click.option("--megabytes", multiple=True, type=Count(), help="10^6 bytes. Default: 1, 10, 100, 1000; 1 if tiny.")
@click.option("--device", "devices", multiple=True, type=click.Choice(get_args(Device)), help="Default: all there are.")
@out_option
def command(
    size: str | None, world_sizes: tuple[int, ...], megabytes: tuple[int, ...], devices: tuple[Device, ...], out: Path
) -> None:
    """Time an all-reduce: NCCL between GPUs and gloo between processes; a minute each.

    \b
    python -m perf study all-reduce --world-size 2 --megabytes 100

    float32, in place, timed from a barrier until the slowest rank is done, small ones twenty at a time. algbw is bytes
    over time; busbw = algbw * 2 (n - 1) / n is what each rank of a ring sends, to
    compare with the rate of all its links together.
    """
    sizes = megabytes or ((1,) if size else (1, 10, 100, 1000))

    def measured() -> Iterator[Row]:
        for device in devices or tuple(dict.fromkeys((device_kind(), "cpu"))):
            axes = itertools.product(world_sizes_of(world_sizes, device), sizes)
            cells = [{"world_size": ranks, "megabytes": size} for ranks, size in axes]
            yield from measured_rows("collectives", cells, device)

    whole = kept(measured(), device_kind(), out / "all-reduce.json")
    present(whole, "All-reduce of float32, median; 1 MB = 10^6 bytes", shown(whole["rows"]))
    draw(whole["rows"], out / "all-reduce.png", heading(whole))


def rates(row: Any) -> tuple[float, float]:
    """Return algbw and busbw, bytes per second."""
    return bandwidths(row["facts"]["bytes"], row["world_size"], statistics.median(row["samples_s"]))


def shown(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    table = []
    for row in rows:
        cells: Row = {"backend": BACKENDS[row["device"]], "ranks": row["world_size"], "MB": row["megabytes"]}
        cells["ms"] = describe(row)
        if row["status"] == "ok":
            algorithm, bus = rates(row)
            cells["ms"] = f"{statistics.median(row['samples_s']) * 1e3:.3f}"
            cells |= {"algbw, GB/s": f"{algorithm / 1e9:.2f}", "busbw, GB/s": f"{bus / 1e9:.2f}"}
        table.append(cells)
    return table


def draw(rows: list[Row], path: Path, title: str) -> None:
    """Plot bus bandwidth over size, a line for each backend and number of ranks."""
    timed = [row for row in rows if row["status"] == "ok"]
    if not timed:
        return
    figure, axes = figures.subplots(figsize=(5.5, 3.6))
    for (device, ranks), group in grouped(timed, "device", "world_size"):
        points = [(row["megabytes"], rates(row)[1] / 1e9) for row in group]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{BACKENDS[device]}, {ranks} ranks")
    axes.set(xscale="log", yscale="log", xlabel="MB", ylabel="busbw, GB/s")
    axes.legend(fontsize=8)
    figures.save(figure, path, title)
