"""Is our stopwatch right? Against `triton.testing.do_bench`, alternating on the same tensors, in one process."""

import statistics
from typing import Any

import click

from perf.harness import ceilings, device
from perf.harness.clock import Stop, visit
from perf.harness.cuda_clocks import EventClock
from perf.harness.measure import TooFast, hold_to_floor, missing_device
from perf.workloads import controls
from perf.workloads.workload import Workload

ROUNDS = 7
STOP = Stop(precision=0.0, max_samples=100, max_seconds=0.2)  # as long as do_bench's 200 ms: the GPU warms up alike


def run() -> None:
    """Print both clocks side by side, then show that a time below the physical floor is refused."""
    from tabulate import tabulate
    from tqdm import tqdm

    if reason := missing_device("cuda"):
        raise click.ClickException(reason)
    clock = EventClock()
    identity, versions = device.identity("cuda"), device.software()
    works = {
        "copy of 1 GiB": (controls.copy(2**28, "cuda"), "GB/s", lambda s: 2 * 2**30 / s * 1e-9),
        "bfloat16 matmul, 8192^3": (
            controls.matmul(8192, "bfloat16", "cuda"),
            "TFLOP/s",
            lambda s: 2 * 8192**3 / s * 1e-12,
        ),
    }
    rows = []
    with tqdm(total=len(works) * ROUNDS, unit="round", leave=False) as bar:
        for name, (work, unit, rate) in works.items():
            ours, theirs = _alternate(clock, work, bar)
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            rows.append(
                [
                    name,
                    unit,
                    f"{rate(statistics.median(ours)):.1f}",
                    f"{rate(statistics.median(theirs)):.1f}",
                    f"{ratio:.4f}",
                ]
            )
    click.echo(f"{identity['name']}, driver {identity.get('driver', '?')}, torch {versions['torch']}")
    click.echo(f"Median of {ROUNDS} alternating rounds, CUDA events, cold L2; ratio of times, median of the rounds")
    click.echo(tabulate(rows, ["work", "unit", "ours", "do_bench", "ours / do_bench"], disable_numparse=True))
    click.echo(_refusal(clock, works["bfloat16 matmul, 8192^3"][0], identity))


def _alternate(clock: EventClock, work: Workload, bar: Any) -> tuple[list[float], list[float]]:
    from triton.testing import do_bench

    ours, theirs = [], []
    clock.warm_up(work)
    for number in range(ROUNDS):
        turns = [
            lambda: ours.append(statistics.median(visit(clock, work, "cold", STOP).samples_s)),
            lambda: theirs.append(do_bench(work.run, warmup=20, rep=200, return_mode="median") * 1e-3),
        ]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
        bar.update()
    return ours, theirs


def _refusal(clock: EventClock, work: Workload, identity: dict[str, Any]) -> str:
    found = ceilings.measure(clock)
    least = ceilings.floor_s(work.floor, found, "cold", identity["l2_bytes"])
    try:
        hold_to_floor(0.99 * least, work.floor, found, "cold", identity["l2_bytes"])
    except TooFast as refused:
        return f"A fabricated time 1 % below the floor is refused: {refused}"
    raise click.ClickException("a time below the physical floor was accepted")
