"""Are our clocks right? Compares each with an independent clock, on the same tensors."""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from perf.harness import ceilings
from perf.harness.case import Cache
from perf.harness.ceilings import TooFast, require_floor
from perf.harness.clock import Clock, Stop
from perf.harness.cuda_clocks import BusyClock, EventClock, GraphClock
from perf.harness.device import missing_device
from perf.harness.status import describe
from perf.studies.cases import measured_rows
from perf.studies.device import bench
from perf.studies.document import heading, kept, out_option, tiny_option
from perf.studies.progress import progress
from perf.studies.rows import Row, grouped
from perf.tables import text_table
from perf.workloads import controls
from perf.workloads.workload import Workload

ROUNDS = 7
PROCESSES = 5
TINY = 2
"""Rounds and processes if tiny."""

STOP = Stop(precision=0.0, max_samples=100, max_seconds=0.2)  # as long as do_bench's 200 ms: the GPU warms up alike


@click.command()
@tiny_option
@out_option
def command(size: str | None, out: Path) -> None:
    """Are our clocks right? Needs a GPU; takes a minute.

    CUDA events against triton.testing.do_bench; a CUDA graph of short kernels against the profiler; a cold and a warm
    L2; a host-bound step in five processes, on the device and on the wall clock; and the refusal of an impossible time.
    """
    if reason := missing_device("cuda"):
        raise click.ClickException(reason)
    rounds, processes = (TINY, TINY) if size else (ROUNDS, PROCESSES)
    questions = {
        f"CUDA events against triton.testing.do_bench: median of {rounds} rounds in turn, cold L2": _do_bench(rounds),
        "A kernel of 10 us in a CUDA graph, less a chain of empty kernels, against its time by the profiler": _graph(),
        "A cold and a warm L2 (60 MB on an H200): bandwidth, bytes read and written": _caches(),
        f"A host-bound step in {processes} processes: range of the medians over their median": _processes(processes),
    }
    answers = progress(questions.items(), unit="question")
    rows = ({"question": question} | cells for question, answer in answers for cells in answer)
    whole = kept(rows, "cuda", out / "clock.json")
    click.echo(heading(whole))
    for (question,), mine in grouped(whole["rows"], "question"):
        cells = [{title: cell for title, cell in row.items() if title != "question"} for row in mine]
        click.echo(f"\n{question}\n{text_table(cells)}")
    click.echo(f"\n{_refusal(whole['device']['l2_bytes'])}")


def _do_bench(rounds: int) -> Iterator[Row]:
    works: list[tuple[str, Workload, str, Callable[[float], float]]] = [
        ("copy of 1 GiB", controls.copy(2**28, "cuda"), "GB/s", lambda s: 2 * 2**30 / s * 1e-9),
        (
            "bfloat16 matmul, 8192^3",
            controls.matmul(8192, "bfloat16", "cuda"),
            "TFLOP/s",
            lambda s: 2 * 8192**3 / s * 1e-12,
        ),
    ]
    for name, work, unit, rate in works:
        ours, theirs = _alternate(EventClock(), work, rounds)
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        yield {
            "work": name,
            "unit": unit,
            "ours": f"{rate(statistics.median(ours)):.1f}",
            "do_bench": f"{rate(statistics.median(theirs)):.1f}",
            "time, ours / do_bench": f"{ratio:.4f}",
        }


def _alternate(clock: Clock, work: Workload, rounds: int) -> tuple[list[float], list[float]]:
    from triton.testing import do_bench

    ours: list[float] = []
    theirs: list[float] = []
    bench().check(work)
    clock.warm_up(work)
    turns: list[Callable[[], None]] = [
        lambda: ours.append(statistics.median(bench().visit(clock, work, "cold", STOP))),
        lambda: theirs.append(do_bench(work.run, warmup=20, rep=200, return_mode="median") * 1e-3),
    ]
    for number in range(rounds):
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
    return ours, bench().require_above_floor(theirs, work, "cold")


def _graph() -> Iterator[Row]:
    gap_us = _median_us(GraphClock(), controls.empty("cuda"))
    works = {
        "bfloat16 matmul, 1536^3": controls.matmul(1536, "bfloat16", "cuda"),
        "copy of 24 MiB": controls.copy(6 * 2**20, "cuda"),
    }
    for name, work in works.items():
        graph_us, profiler_us = _median_us(GraphClock(), work), _median_us(BusyClock(), work)
        yield {
            "work": name,
            "graph, us": f"{graph_us:.2f}",
            "empty kernel, us": f"{gap_us:.2f}",
            "profiler, us": f"{profiler_us:.2f}",
            "(graph - empty) / profiler": f"{(graph_us - gap_us) / profiler_us:.3f}",
            "events, us": f"{_median_us(EventClock(), work):.2f}",
        }


def _median_us(clock: Clock, work: Workload) -> float:
    bench().check(work)
    clock.warm_up(work)
    return statistics.median(bench().visit(clock, work, "warm", STOP)) * 1e6


def _caches() -> Iterator[Row]:
    for name, elements in {"100 MB to 100 MB": 25_000_000, "20 MB to 20 MB": 5_000_000}.items():
        work, clock = controls.copy(elements, "cuda"), EventClock()
        bench().check(work)
        clock.warm_up(work)
        caches: tuple[Cache, ...] = ("cold", "warm")
        seconds = {cache: statistics.median(bench().visit(clock, work, cache, STOP)) for cache in caches}
        rates = {f"{cache}, GB/s": f"{8 * elements / seconds[cache] * 1e-9:.0f}" for cache in seconds}
        yield {"copy": name, **rates, "cold / warm": f"{seconds['cold'] / seconds['warm']:.3f}"}


def _processes(count: int) -> Iterator[Row]:
    clocks = ("device_busy", "gpu_wall", "cuda_graph")
    settings = [{"control": "linears", "clock": clock} for clock in clocks]
    medians: dict[str, list[float]] = {clock: [] for clock in clocks}
    for _ in range(count):
        for row in list(measured_rows("controls", settings, "cuda", {"precision": 0.0})):
            if row["status"] != "ok":
                raise click.ClickException(f"{row['clock']}: {describe(row)}")
            medians[row["clock"]].append(statistics.median(row["samples_s"]) * 1e3)
    for name, values in medians.items():
        yield {
            "48 linear layers, forward and backward": name,
            "medians, ms": "  ".join(f"{value:.3f}" for value in values),
            "range": f"{(max(values) - min(values)) / statistics.median(values):.2%}",
        }


def _refusal(l2_bytes: int) -> str:
    clock, work = EventClock(), controls.matmul(8192, "bfloat16", "cuda")
    limits = ceilings.measure(clock)
    floor_s = ceilings.floor_s(work.floor, limits, "cold", l2_bytes)
    try:
        require_floor(0.99 * floor_s, work.floor, limits, "cold", l2_bytes)
    except TooFast as refused:
        return f"A fabricated time 1 % below the floor is refused: {refused}"
    raise click.ClickException("a time below the physical floor was accepted")
