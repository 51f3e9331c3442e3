"""When does a step compute and when does it communicate? A picture for each strategy."""

from pathlib import Path
from typing import Any

import click

from perf.harness.case import Case
from perf.harness.status import one_line, refusals
from perf.options import Finite
from perf.studies import figures
from perf.studies.document import document, heading, out_option, tell, write
from perf.studies.lm import ON_A_CPU, SIZES, VARIANTS, bench
from perf.studies.parallel.ranked import default_device, held_ranks
from perf.workloads.data_parallel import STRATEGIES

KINDS = ("compute", "communication")
Spans = list[list[float]]


@click.command()
@click.option("--world-size", default=2, show_default=True, type=click.IntRange(2, 64))
@click.option(
    "--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES), help="Default: naive, overlapped."
)
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1), help="Of every rank.")
@click.option("--bucket-size-mb", default=25.0, show_default=True, type=Finite(0, min_open=True))
@click.option("--size", type=click.Choice(SIZES[:6]), help="Default: xl; tiny on a CPU.")
@click.option("--context", type=click.IntRange(2), help="Default: 512; 64 on a CPU.")
@click.option("--precision", type=click.Choice(("fp32", "tf32", "bf16")), help="Default: bf16; fp32 on a CPU.")
@click.option("--variant", type=click.Choice(VARIANTS[:3]), help="Default: compiled_blocks; eager on a CPU.")
@out_option
def command(
    world_size: int,
    strategies: tuple[str, ...],
    batch: int,
    bucket_size_mb: float,
    size: str | None,
    context: int | None,
    precision: str | None,
    variant: str | None,
    out: Path,
) -> None:
    """When does a step compute and when does it communicate? A minute on two GPUs.

    \b
    python -m perf study overlap --strategy naive --strategy bucketed --batch 16 --out FOLDER

    One step of each strategy after warm-up, profiled on every rank: the union of the spans of its kernels and that of
    its collectives. overlap is the part of the communication during which the same rank computes. It says that the two
    coincide, not that communication is free: `study ddp` measures what it adds to a step. Gaps in both are the host,
    which the profiler slows down: a larger --batch fills them.
    """
    device = default_device()
    on_gpu = device == "cuda"
    params: dict[str, Any] = {
        "batch": batch,
        "bucket_size_mb": bucket_size_mb,
        "size": size or ("xl" if on_gpu else "tiny"),
        "context_length": context or (512 if on_gpu else 64),
        "precision": precision or ("bf16" if on_gpu else "fp32"),
        "variant": variant or ("compiled_blocks" if on_gpu else "eager"),
        "world_size": world_size,
        "mode": "step",
    }
    rows = []
    try:
        with held_ranks(device) as ranks_of:
            ranks = ranks_of(world_size)
            for strategy in strategies or ("naive", "overlapped"):
                case = Case("study", "data_parallel", {"strategy": strategy} | params, device, "ranks", "warm")
                work = ranks.build(case)
                bench().check(work)
                for _ in range(3):  # torch's DDP orders its buckets anew after the first
                    work.run()
                spans = ranks.spans()
                for own in spans:
                    bench().hold([length(own["compute"])], work, "warm")
                rows += [
                    {"strategy": strategy, "rank": rank} | params | {kind: _to_100_ns(own[kind]) for kind in KINDS}
                    for rank, own in enumerate(spans)
                ]
    except refusals(RuntimeError) as error:
        raise click.ClickException(one_line(error)) from None
    whole = document(device, rows)
    where = f"{params['size']}, context {params['context_length']}, batch {batch} a rank, {world_size} ranks"
    tell(whole, f"{where}: one step; ms", shown(rows))
    if not on_gpu:
        click.echo(ON_A_CPU)
    write(out / "overlap.json", whole)
    draw(rows, out / "overlap.png", f"{heading(whole)}\n{where}")


def _to_100_ns(spans: Spans) -> Spans:
    """Round to 100 ns, the resolution of a kernel's time: there are thousands of spans."""
    return [[round(start, 7), round(end, 7)] for start, end in spans]


def length(spans: Spans) -> float:
    """Return the total length of disjoint spans."""
    return sum(end - start for start, end in spans)


def common(one: Spans, other: Spans) -> float:
    """Return the length of the intersection; the spans of each are in order and disjoint."""
    import numpy

    if not one or not other:
        return 0.0
    until_then = numpy.cumsum([[0.0, end - start] for start, end in one])  # of `one`, at each of its edges
    at_edges = numpy.interp(other, numpy.ravel(one), until_then)
    return float(numpy.diff(at_edges).sum())


def shown(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The cells of each row by the title of their column."""
    found = []
    for row in rows:
        compute, communication = (row[kind] for kind in KINDS)
        both, sent = common(compute, communication), length(communication)
        found.append(
            {
                "strategy": row["strategy"],
                "rank": row["rank"],
                "compute": f"{length(compute) * 1e3:.2f}",
                "communication": f"{sent * 1e3:.2f}",
                "both at once": f"{both * 1e3:.2f}",
                "overlap": f"{both / sent:.0%}" if sent else "-",
            }
        )
    return found


def draw(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draw two lanes for each strategy, of rank 0, on one axis of time."""
    mine = [row for row in rows if row["rank"] == 0]
    figure, panels = figures.subplots(len(mine), 1, figsize=(9, 0.8 + 1.1 * len(mine)), sharex=True, squeeze=False)
    for axes, row in zip(panels[:, 0], mine, strict=True):
        for lane, (kind, color) in enumerate(zip(KINDS, ("tab:blue", "tab:orange"), strict=True)):
            axes.broken_barh([(start * 1e3, (end - start) * 1e3) for start, end in row[kind]], (lane, 0.8), color=color)
        axes.set_yticks([0.4, 1.4], KINDS, fontsize=8)
        axes.invert_yaxis()
        axes.set_title(row["strategy"], fontsize=9, loc="left")
    panels[-1, 0].set_xlabel("ms since the step's first work")
    figure.suptitle(title, fontsize=8)
    figures.save(figure, path)
