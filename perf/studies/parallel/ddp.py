"""Measure what data parallelism adds to a step, by strategy and by bucket size."""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from perf.harness.status import describe
from perf.options import Finite
from perf.studies import figures
from perf.studies.cases import measured_rows
from perf.studies.document import heading, kept, out_option, present
from perf.studies.lm import VARIANTS
from perf.studies.parallel.ranked import UNSCALED, Steps, step_options
from perf.studies.rows import Row, grouped
from perf.units import GIB, mib
from perf.workloads.closed_forms import best_bucket_bytes, exposed_seconds, fit_buckets
from perf.workloads.data_parallel import STRATEGIES

SWEPT = ("bucketed", "torch", "torch_static")


@click.command()
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES), help="Default: all.")
@click.option("--bucket-size-mb", "buckets", multiple=True, type=Finite(0, min_open=True), help="MiB to sweep.")
@step_options(UNSCALED, VARIANTS)
@out_option
def command(steps: Steps, strategies: tuple[str, ...], buckets: tuple[float, ...], out: Path) -> None:
    """Measure what data parallelism adds to a step: four strategies and torch's DDP; five minutes on two GPUs.

    \b
    python -m perf study ddp --world-size 2 --strategy naive --strategy bucketed --context 1024

    step is the slowest rank's; exposed is its time beyond the same step without communication, sampled in turn. Bucket
    sizes are swept for ours and for torch's, and the course's cost model is fitted to ours: overhead = s / (n w) + n o.
    Each setting is measured once: `study parallel-step` compares two until the interval is narrow enough.
    """
    device = steps.device
    swept = buckets or ((1, 10, 25, 100, 1000) if device == "cuda" else (0.01, 0.1, 1.0))
    settings = [
        {"strategy": strategy, "bucket_size_mb": bucket} | where | {"mode": mode}
        for where, strategy in itertools.product(steps, strategies or STRATEGIES)
        for bucket in (swept if strategy in SWEPT else swept[:1])
        for mode in ("step", "exposed")
    ]
    whole = kept(paired(measured_rows("data_parallel", settings, device)), device, out / "ddp.json")
    present(whole, f"Medians of the slowest rank, ms: {steps}", shown(whole["rows"]), answers(whole["rows"]))
    draw(whole["rows"], out / "ddp.png", heading(whole))


def paired(rows: Iterable[Row]) -> Iterator[Row]:
    """Join the rows of both modes of each setting: step_s and exposed_s are the samples of each."""
    modes = iter(rows)
    for step, exposed in zip(modes, modes, strict=True):
        row = {name: value for name, value in step.items() if name not in ("mode", "samples_s")}
        if step["status"] == exposed["status"] == "ok":
            row |= {"step_s": step["samples_s"], "exposed_s": exposed["samples_s"]}
        elif step["status"] == "ok":
            row |= {"status": exposed["status"], "reason": exposed["reason"]}
        yield row


def shown(rows: list[Row]) -> list[Row]:
    """Return the cells of each row by column title."""
    table = []
    for row in rows:
        cells: Row = {"size": row["size"], "context_length": row["context_length"], "strategy": row["strategy"]}
        cells |= {"ranks": row["world_size"], "step": describe(row)}
        cells["bucket, MiB"] = f"{row['bucket_size_mb']:g}" if row["strategy"] in SWEPT else "-"
        if row["status"] == "ok":
            step, exposed = statistics.median(row["step_s"]), statistics.median(row["exposed_s"])
            facts = row["facts"]
            cells |= {
                "step": f"{step * 1e3:.2f}",
                "exposed": f"{exposed * 1e3:.2f}",
                "share": share(exposed, step),
                "calls": facts.get("calls", "-"),
                "MB sent": f"{facts['bytes'] / 1e6:.1f}" if "bytes" in facts else "-",
                "peak, GiB": f"{row['peak_bytes'] / GIB:.2f}" if "peak_bytes" in row else "-",
            }
        table.append(cells)
    return table


def share(exposed: float, step: float) -> str:
    """Format a share of the step. Each has its own samples, so that noise can make the part exceed the whole."""
    return f"{exposed / step:.1%}" if exposed <= step else "over 100%"


def fitted(rows: list[Row]) -> tuple[float, float] | None:
    """Return the bandwidth (bytes a second) and overhead (seconds a call) that fit our sweep, if of three sizes."""
    mine = [row for row in rows if row["strategy"] == "bucketed" and row["status"] == "ok"]
    return fit_buckets([(row["facts"]["bytes"], row["facts"]["calls"], _exposed_s(row)) for row in mine])


def _exposed_s(row: Row) -> float:
    return statistics.median(row["exposed_s"])


def _step_s(row: Row) -> float:
    return statistics.median(row["step_s"])


def answers(rows: list[Row]) -> Iterator[str]:
    """Name the best strategy and the best bucket size by the cost model, for every model and number of ranks."""
    timed = [row for row in rows if row["status"] == "ok"]
    for (size, context, ranks), mine in grouped(timed, "size", "context_length", "world_size"):
        where = f"{size}, context {context}, {ranks} ranks"
        best = min(mine, key=_step_s)
        bucket = f" at {best['bucket_size_mb']:g} MiB" if best["strategy"] in SWEPT else ""
        yield f"{where}: {best['strategy']}{bucket} has the shortest step."
        if fit := fitted(mine):
            bandwidth, overhead = fit
            terms = {"its last bucket's bytes": math.isfinite(bandwidth), "its calls": overhead > 0}
            if unseen := [name for name, is_seen in terms.items() if not is_seen]:
                yield f"{where}: the sweep shows no time of {' nor of '.join(unseen)}, so no best bucket by the model."
                continue
            swept = [row for row in mine if row["strategy"] == "bucketed"]
            least = min(swept, key=_exposed_s)
            optimum = best_bucket_bytes(swept[0]["facts"]["bytes"], fit)
            yield (
                f"{where}: fitted w = {bandwidth / 1e9:.1f} GB/s and o = {overhead * 1e6:.0f} us a call; the best "
                f"bucket is {mib(optimum, 1)} by the model and {least['bucket_size_mb']:g} MiB by measurement."
            )


def draw(rows: list[Row], path: Path, title: str) -> None:
    """Plot the step of each strategy at its best with its communication, and communication over bucket size."""
    timed = [row for row in rows if row["status"] == "ok"]
    if not timed:
        return
    (size, context, ranks), first = next(grouped(timed, "size", "context_length", "world_size"))
    by_strategy = {strategy: mine for (strategy,), mine in grouped(first, "strategy")}
    figure, (left, right) = figures.subplots(1, 2, figsize=(9, 3.6))
    best = [min(mine, key=_step_s) for mine in by_strategy.values()]
    steps = [_step_s(row) * 1e3 for row in best]
    exposed = [min(max(_exposed_s(row) * 1e3, 0.0), step) for row, step in zip(best, steps, strict=True)]  # of noise
    alone = [step - part for step, part in zip(steps, exposed, strict=True)]
    parts = {"without communication": alone, "exposed communication": exposed}
    figures.stacked_bars(left, list(by_strategy), parts)
    left.set_xlabel("ms a step")
    figures.legend_above(left)
    for name in SWEPT:
        if len(swept := by_strategy.get(name, [])) > 1:
            points = sorted((row["bucket_size_mb"], _exposed_s(row) * 1e3) for row in swept)
            right.plot(*zip(*points, strict=True), marker="o", label=name)
    ours = sorted(by_strategy.get("bucketed", []), key=lambda row: row["bucket_size_mb"])
    if fit := fitted(ours):
        model = [exposed_seconds(row["facts"]["bytes"], row["facts"]["calls"], fit) * 1e3 for row in ours]
        places = [row["bucket_size_mb"] for row in ours]
        right.plot(places, model, linestyle=":", color="black", label="s / (n w) + n o, fitted")
    right.set(xscale="log", xlabel="bucket, MiB", ylabel="exposed communication, ms")
    figures.legend_above(right)
    figures.save(figure, path, f"{title}\n{size}, context {context}, {ranks} ranks")
