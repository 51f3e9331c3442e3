"""What a clock is, the wall clock, and a visit: one stay at a case.

A visit is a warm-up, then samples until the median is known well enough or the budget is spent.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from perf.harness.case import Cache, ClockName
from perf.harness.intervals import of_median
from perf.workloads.workload import Workload

WARM_UP_S = 0.025
BATCH = 5

NOTCH = 0.909
"""Level of the interval that ends a visit: 1.57 IQR / sqrt(n), the notches of McGill, Tukey and Larsen (1978)."""


@dataclass(frozen=True)
class Stop:
    """When a visit has enough samples."""

    min_samples: int = 20
    max_samples: int = 60
    max_seconds: float = 0.25
    """Wall time of the sampling; checked between batches, and never before the first of them."""

    precision: float = 0.005
    """Half-width of the median's interval (`NOTCH`) over the median at which sampling ends early."""

    def reached(self, samples: list[float], seconds: float) -> bool:
        """Whether to stop after these samples (seconds each) and this much wall time."""
        if len(samples) >= self.max_samples or seconds >= self.max_seconds:
            return True
        return len(samples) >= self.min_samples and median_half_width(samples) <= self.precision


def median_half_width(samples: list[float]) -> float:
    """Relative half-width of the median's interval at `NOTCH`; 0 of a median that is not positive."""
    known = of_median(samples, NOTCH)
    return known.half / known.value if known.value > 0 else 0.0


class Clock(Protocol):
    """How long a piece of work takes, by one definition."""

    name: ClockName
    call_s: float
    """How long a call takes, roughly, as the last warm-up found; 0 if unknown."""

    def warm_up(self, work: Workload, read_state: Callable[[], dict[str, Any]] | None = None) -> dict[str, Any]:
        """Get `work` and the device going; returns the state read meanwhile."""

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """`count` samples, seconds; warm up first. `while_busy` is called once while the device works, or after.

        Raises `ValueError` for a state of the cache that this clock cannot bring about.
        """


class WallClock:
    """wall: from call to return, on the host; CPU work only, where there is no L2 to flush between samples."""

    name: ClockName = "wall"
    call_s = 0.0

    def warm_up(self, work: Workload, read_state: Callable[[], dict] | None = None) -> dict:
        """Run until WARM_UP_S has passed, at least twice."""
        begin, runs = time.perf_counter(), 0
        while runs < 2 or time.perf_counter() - begin < WARM_UP_S:
            work.prepare()
            work.run()
            runs += 1
        self.call_s = (time.perf_counter() - begin) / runs
        return read_state() if read_state else {}

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """`count` samples, one after the other."""
        if cache != "warm":
            raise ValueError(f"cache={cache!r} was given; the wall clock measures 'warm' only")
        samples = []
        for _ in range(count):
            work.prepare()
            start = time.perf_counter()
            work.run()
            samples.append(time.perf_counter() - start)
        while_busy()
        return samples


@dataclass(frozen=True)
class Visit:
    """What one stay at a case gave."""

    samples_s: list[float]
    """In the order in which they were taken."""

    throttled: list[int]
    """Indices of the samples during which the device said that it was slowing itself down."""

    reasons: list[str]
    """What it said."""


def visit(
    clock: Clock, work: Workload, cache: Cache, stop: Stop = Stop(), throttling: Callable[[], list[str]] = lambda: []
) -> Visit:
    """Sample until `stop`; warm up first. `throttling` says why the device is slow just now: nothing, if it is not.

    In batches of 5, or of as many calls as fit into the time that there is: a step of two seconds is sampled once.
    """
    batch = max(1, min(BATCH, int(stop.max_seconds / clock.call_s))) if clock.call_s else BATCH
    samples: list[float] = []
    throttled: list[int] = []
    reasons: dict[str, None] = {}
    begin = time.perf_counter()
    with _no_garbage_collection():
        while not samples or not stop.reached(samples, time.perf_counter() - begin):
            said: list[str] = []
            count = min(batch, stop.max_samples - len(samples))
            samples += clock.batch(work, cache, count, lambda said=said: said.extend(throttling()))  # type: ignore[misc]
            if said:
                throttled += range(len(samples) - count, len(samples))
                reasons |= dict.fromkeys(said)
    return Visit(samples, throttled, list(reasons))


def alternate(
    arms: Sequence[tuple[Clock, Workload]],
    cache: Cache,
    samples: int,
    while_busy: Callable[[int, int], None] = lambda arm, number: None,
) -> list[list[float]]:
    """`samples` of each arm, one at a time in turn, the order turned round each time: A B B A.

    Drift in time is most of the noise of a GPU, and within a millisecond it is the same for all arms. Each arm's clock
    has warmed up its work. `while_busy(arm, number)` is called while the device works on that sample, or after.
    """
    found: list[list[float]] = [[] for _ in arms]
    with _no_garbage_collection():
        for number in range(samples):
            for index in range(len(arms)) if number % 2 == 0 else reversed(range(len(arms))):
                clock, work = arms[index]
                found[index] += clock.batch(work, cache, 1, lambda: while_busy(index, number))  # noqa: B023 - called in batch
    return found


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
