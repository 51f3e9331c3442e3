"""What does data parallelism add to a step, by strategy and by bucket size?"""

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from perf.harness.status import describe
from perf.options import Finite
from perf.studies import figures
from perf.studies.document import document, heading, kept, out_option, tell, write
from perf.studies.lm import ON_A_CPU, VARIANTS
from perf.studies.parallel.ranked import UNSCALED, Steps, measured_rows, step_options
from perf.units import GIB, mib
from perf.workloads.closed_forms import best_bucket_bytes, exposed_seconds, fit_buckets
from perf.workloads.data_parallel import STRATEGIES

SWEPT = ("bucketed", "torch", "torch_static")


@click.command()
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES), help="Default: all.")
@click.option("--bucket-size-mb", "buckets", multiple=True, type=Finite(0, min_open=True), help="MiB; swept.")
@step_options(UNSCALED, VARIANTS)
@out_option
def command(steps: Steps, strategies: tuple[str, ...], buckets: tuple[float, ...], out: Path) -> None:
    """What does data parallelism add to a step? Four strategies and torch's DDP; five minutes on two GPUs.

    \b
    python -m perf study ddp --world-size 2 --strategy naive --strategy bucketed --context 1024

    step is the slowest rank's, exposed what it takes more than the same step without communication, the two in turn.
    Bucket sizes are swept for ours and for torch's, and the course's model of their cost is fitted to ours:
    overhead = s / (n w) + n o. Each setting once: `study parallel-step` holds two beside each other until it is sure.
    """
    device, on_gpu = steps.device, steps.device == "cuda"
    swept = buckets or ((1, 10, 25, 100, 1000) if on_gpu else (0.01, 0.1, 1.0))
    settings = [
        {"strategy": strategy, "bucket_size_mb": bucket} | where | {"mode": mode}
        for where, strategy in itertools.product(steps, strategies or STRATEGIES)
        for bucket in (swept if strategy in SWEPT else swept[:1])
        for mode in ("step", "exposed")
    ]
    rows = paired(kept(measured_rows("data_parallel", settings, device), device, out / "ddp.json"))
    whole = document(device, rows)
    tell(whole, f"Medians of the slowest rank, ms: {steps}", shown(rows), answers(rows))
    if not on_gpu:
        click.echo(ON_A_CPU)
    write(out / "ddp.json", whole)
    draw(rows, out / "ddp.png", heading(whole))


def paired(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the rows of the two modes of a setting: step_s and exposed_s, samples of each."""
    found = []
    for step, exposed in zip(rows[::2], rows[1::2], strict=True):
        row = {name: value for name, value in step.items() if name not in ("mode", "samples_s")}
        if step["status"] == exposed["status"] == "ok":
            row |= {"step_s": step["samples_s"], "exposed_s": exposed["samples_s"]}
        elif step["status"] == "ok":
            row |= {"status": exposed["status"], "reason": exposed["reason"]}
        found.append(row)
    return found


def shown(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The cells of each row by the title of their column."""
    found = []
    for row in rows:
        cells = {name: row[name] for name in ("size", "context_length", "strategy")} | {"ranks": row["world_size"]}
        cells["bucket, MiB"] = f"{row['bucket_size_mb']:g}" if row["strategy"] in SWEPT else "-"
        if row["status"] == "ok":
            step, exposed = (statistics.median(row[name]) for name in ("step_s", "exposed_s"))
            facts = row["facts"]
            cells |= {
                "step": f"{step * 1e3:.2f}",
                "exposed": f"{exposed * 1e3:.2f}",
                "share": share(exposed, step),
                "calls": facts.get("calls", "-"),
                "MB sent": f"{facts['bytes'] / 1e6:.1f}" if "bytes" in facts else "-",
                "peak, GiB": f"{row['peak_bytes'] / GIB:.2f}" if "peak_bytes" in row else "-",
            }
        else:
            cells["step"] = describe(row)
        found.append(cells)
    return found


def share(exposed: float, step: float) -> str:
    """Format a share of the step. Each has its own samples, so that noise can make the part exceed the whole."""
    return f"{exposed / step:.1%}" if exposed <= step else "over 100%"


def fitted(rows: list[dict[str, Any]]) -> tuple[float, float] | None:
    """Bandwidth (bytes a second) and overhead (seconds a call) that fit our sweep best; None without three sizes."""
    mine = [row for row in rows if row["strategy"] == "bucketed" and row["status"] == "ok"]
    return fit_buckets(
        [(row["facts"]["bytes"], row["facts"]["calls"], statistics.median(row["exposed_s"])) for row in mine]
    )


def answers(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Name the best strategy and the best bucket size by the cost model, for every model and number of ranks."""
    timed = [row for row in rows if row["status"] == "ok"]
    for (size, context, ranks), group in itertools.groupby(
        timed, key=lambda row: (row["size"], row["context_length"], row["world_size"])
    ):
        mine = list(group)
        where = f"{size}, context {context}, {ranks} ranks"
        best = min(mine, key=lambda row: statistics.median(row["step_s"]))
        bucket = f" at {best['bucket_size_mb']:g} MiB" if best["strategy"] in SWEPT else ""
        yield f"{where}: {best['strategy']}{bucket} has the shortest step."
        if fit := fitted(mine):
            bandwidth, overhead = fit
            sent = next(row["facts"]["bytes"] for row in mine if row["strategy"] == "bucketed")
            swept = [row for row in mine if row["strategy"] == "bucketed"]
            least = min(swept, key=lambda row: statistics.median(row["exposed_s"]))
            optimum = best_bucket_bytes(sent, fit)
            yield (
                f"{where}: fitted w = {bandwidth / 1e9:.1f} GB/s and o = {overhead * 1e6:.0f} us a call; by the model "
                f"the best bucket has {mib(optimum, 1)}, measured {least['bucket_size_mb']:g} MiB."
            )


def draw(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Left: the step of each strategy at its best, and what of it is communication. Right: that over bucket size."""
    timed = [row for row in rows if row["status"] == "ok"]
    if not timed:
        return
    first = {name: timed[0][name] for name in ("size", "context_length", "world_size")}
    mine = [row for row in timed if all(row[name] == value for name, value in first.items())]
    figure, (left, right) = figures.subplots(1, 2, figsize=(9, 3.6))
    names = list(dict.fromkeys(row["strategy"] for row in mine))
    best = [
        min((row for row in mine if row["strategy"] == name), key=lambda row: statistics.median(row["step_s"]))
        for name in names
    ]
    exposed = [statistics.median(row["exposed_s"]) * 1e3 for row in best]
    alone = [statistics.median(row["step_s"]) * 1e3 - part for row, part in zip(best, exposed, strict=True)]
    left.bar(names, alone, label="without communication")
    left.bar(names, exposed, bottom=alone, label="exposed communication")
    left.set_ylabel("ms a step")
    left.legend(fontsize=8)
    for name in SWEPT:
        swept = [row for row in mine if row["strategy"] == name]
        if len(swept) > 1:
            places = [row["bucket_size_mb"] for row in swept]
            right.plot(places, [statistics.median(row["exposed_s"]) * 1e3 for row in swept], marker="o", label=name)
    if fit := fitted(mine):
        ours = [row for row in mine if row["strategy"] == "bucketed"]
        right.plot(
            [row["bucket_size_mb"] for row in ours],
            [exposed_seconds(row["facts"]["bytes"], row["facts"]["calls"], fit) * 1e3 for row in ours],
            linestyle=":",
            color="black",
            label="s / (n w) + n o, fitted",
        )
    right.set_xscale("log")
    right.set_xlabel("bucket, MiB")
    right.set_ylabel("exposed communication, ms")
    if right.get_legend_handles_labels()[0]:
        right.legend(fontsize=8)
    where = f"{first['size']}, context {first['context_length']}, {first['world_size']} ranks"
    figure.suptitle(f"{title}\n{where}", fontsize=8)
    figures.save(figure, path)
