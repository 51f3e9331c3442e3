"""Draw when a step computes and when it communicates, for each strategy."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from perf.harness.case import Case
from perf.harness.spans import Span
from perf.harness.status import one_line, refusals
from perf.options import Finite
from perf.studies import figures
from perf.studies.device import bench
from perf.studies.document import heading, kept, out_option, present
from perf.studies.parallel.fsdp import compute_dtype
from perf.studies.parallel.ranked import Steps, running_ranks, step_options
from perf.studies.rows import Row, Spans, differing
from perf.workloads.data_parallel import STRATEGIES
from perf.workloads.fully_sharded import SHARDINGS

KINDS = ("compute", "communication")


@click.command()
@click.option(
    "--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES), help="Default: naive, overlapped."
)
@click.option(
    "--fully-sharded", "shardings", multiple=True, type=click.Choice(SHARDINGS), help="Of a fully sharded step."
)
@click.option("--bucket-size-mb", default=25.0, show_default=True, type=Finite(0, min_open=True))
@step_options()
@out_option
def command(
    steps: Steps, strategies: tuple[str, ...], shardings: tuple[str, ...], bucket_size_mb: float, out: Path
) -> None:
    """Draw when a step computes and when it communicates. A minute on two GPUs.

    \b
    python -m perf study overlap --strategy naive --strategy bucketed --batch 16 --out FOLDER
    python -m perf study overlap --fully-sharded prefetch_2 --fully-sharded torch --out FOLDER

    One step of each strategy after warm-up, profiled on every rank: the union of the spans of its kernels and that of
    its collectives. overlap is the share of the communication during which the same rank computes; alone is the time of
    the rest. Overlapping work is not free: `study ddp` measures what communication adds to a step. Gaps in both are the
    host, which the profiler slows down: a larger --batch fills them.
    """
    if not strategies and not shardings:
        strategies = ("naive", "overlapped")
    bucket, dtype = {"bucket_size_mb": bucket_size_mb}, {"compute_dtype": compute_dtype(steps)}
    ways: dict[str, tuple[str, Row]] = {}
    ways |= {name: ("data_parallel", {"strategy": name} | bucket) for name in strategies}
    ways |= {f"fully_sharded/{name}": ("fully_sharded", {"sharding": name} | dtype) for name in shardings}

    def rows() -> Iterator[Row]:
        with running_ranks(steps.device) as ranks_of:
            for where, (strategy, (workload, own)) in itertools.product(steps, ways.items()):
                params = own | where | {"mode": "step"}
                ranks = ranks_of(where["world_size"])
                work = ranks.build(Case("study", workload, params, steps.device, "ranks", "warm"))
                bench().check(work)
                for _ in range(3):  # torch's DDP orders its buckets anew after the first
                    work.run()
                for rank, spans in enumerate(ranks.spans()):
                    bench().require_above_floor([length(spans["compute"])], work, "warm")
                    lanes = {kind: _to_100_ns(spans[kind]) for kind in KINDS}
                    yield {"rank": rank} | params | {"strategy": strategy} | lanes

    try:
        whole = kept(rows(), steps.device, out / "overlap.json")
    except refusals(RuntimeError) as error:
        raise click.ClickException(one_line(error)) from None
    present(whole, f"One step of {steps}; ms", shown(whole["rows"]))
    draw(whole["rows"], out / "overlap.png", f"{heading(whole)}\n{steps}")


def _to_100_ns(spans: Sequence[Span]) -> Spans:
    """Round to 100 ns, the resolution of a kernel's time: there are thousands of spans."""
    return [[round(start, 7), round(end, 7)] for start, end in spans]


def length(spans: Sequence[Sequence[float]]) -> float:
    """Return the total length of disjoint spans."""
    return sum(end - start for start, end in spans)


def common(spans: Spans, other: Spans) -> float:
    """Return the length of the intersection; the spans of each are in order and disjoint."""
    import numpy

    if not spans or not other:
        return 0.0
    until_then = numpy.cumsum(
        [[0.0, end - start] for start, end in spans]
    )  # length of `spans` before each of its edges
    at_edges = numpy.interp(other, numpy.ravel(spans), until_then)
    return float(numpy.diff(at_edges).sum())


def shown(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    table = []
    for row in rows:
        both, sent = common(row["compute"], row["communication"]), length(row["communication"])
        cells: Row = {
            "strategy": _name(row, rows),
            "rank": row["rank"],
            "compute": f"{length(row['compute']) * 1e3:.2f}",
        }
        cells |= {"communication": f"{sent * 1e3:.2f}", "both at once": f"{both * 1e3:.2f}"}
        cells |= {"alone": f"{(sent - both) * 1e3:.2f}"}
        table.append(cells | {"overlap": f"{both / sent:.0%}" if sent else "-"})
    return table


def _name(row: Row, rows: list[Row]) -> str:
    """Return the strategy of a row, with the axes that differ between rows."""
    axes = differing(rows, ("size", "context_length", "world_size"))
    return ", ".join([row["strategy"], *(f"{axis} {row[axis]}" for axis in axes)])


def draw(rows: list[Row], path: Path, title: str) -> None:
    """Draw two lanes for each strategy, of the first rank, on one time axis."""
    first = min(row["rank"] for row in rows)
    mine = [row for row in rows if row["rank"] == first]
    figure, panels = figures.subplots(len(mine), 1, figsize=(9, 0.8 + 1.1 * len(mine)), sharex=True, squeeze=False)
    for axes, row in zip(panels[:, 0], mine, strict=True):
        lanes = ((row["compute"], "tab:blue"), (row["communication"], "tab:orange"))
        for lane, (spans, color) in enumerate(lanes):
            axes.broken_barh([(start * 1e3, (end - start) * 1e3) for start, end in spans], (lane, 0.8), color=color)
        axes.set_yticks([0.4, 1.4], KINDS, fontsize=8)
        axes.invert_yaxis()
        axes.set_title(_name(row, mine), fontsize=9, loc="left")
    panels[-1, 0].set_xlabel("ms since the step's first work")
    figures.save(figure, path, title)
