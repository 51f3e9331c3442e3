"""The interface of a clock, the clocks of a CPU, and a visit: a warm-up, then samples of one case.

A visit ends when the median's confidence interval is narrow enough or the budget is spent.
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

MAX_CALLS = 20
"""Calls of a sample of the host's time."""

MAX_CALLS_S = 0.1
"""Seconds of a sample of the host's time: a long step is called once."""

NOTCH = 0.909
"""Confidence level that ends a visit: 1.57 IQR / sqrt(n), the notches of McGill, Tukey and Larsen (1978)."""


@dataclass(frozen=True)
class Stop:
    """The stopping rule of a visit."""

    min_samples: int = 20
    max_samples: int = 60
    max_seconds: float = 0.25
    """Wall time of the sampling, checked after each batch."""

    precision: float = 0.005
    """Relative half-width of the median's interval (`NOTCH`) at which sampling ends early."""

    def reached(self, samples: list[float], seconds: float) -> bool:
        """Return whether to stop after these samples (seconds each) and this much wall time."""
        if len(samples) >= self.max_samples or seconds >= self.max_seconds:
            return True
        return len(samples) >= self.min_samples and median_half_width(samples) <= self.precision


def median_half_width(samples: list[float]) -> float:
    """Return the relative half-width of the median's interval at `NOTCH`; 0 if the median is not positive."""
    interval = of_median(samples, NOTCH)
    return interval.half / interval.value if interval.value > 0 else 0.0


class Clock(Protocol):
    """One definition of the time of a workload."""

    name: ClockName
    call_s: float
    """Approximate duration of a call in the last warm-up; 0 if unknown."""

    def warm_up(self, work: Workload, read_state: Callable[[], dict[str, Any]] | None = None) -> dict[str, Any]:
        """Warm up `work` and the device; return the state that `read_state` reads meanwhile."""

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Take `count` samples (seconds) after a warm-up; call `while_busy` once, while the device works or after.

        Raises `ValueError` for a state of the cache that this clock cannot establish.
        """


class WallClock:
    """wall: from call to return on the host, for CPU work only: it does not flush a cache."""

    name: ClockName = "wall"
    call_s = 0.0

    def warm_up(self, work: Workload, read_state: Callable[[], dict] | None = None) -> dict:
        """Run for WARM_UP_S, at least twice."""
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
        """Take `count` samples, one after the other."""
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


class HostClock(WallClock):
    """host: the time until the call returns, for work whose calculation is too small to matter."""

    name: ClockName = "host"

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Take `count` samples; see `host_samples`."""
        return host_samples(work, cache, count, self.call_s, while_busy=while_busy)


CPU_CLOCKS: dict[str, Callable[[], Clock]] = {clock.name: clock for clock in (WallClock, HostClock)}


def host_samples(
    work: Workload,
    cache: Cache,
    count: int,
    call_s: float,
    *,
    drain: Callable[[], None] = lambda: None,
    while_busy: Callable[[], None] = lambda: None,
) -> list[float]:
    """Take `count` samples, each the minimum of up to `MAX_CALLS` calls of about `call_s` seconds, from call to return.

    `drain` waits for the device before each call, outside the time: a launch into a full queue would wait for it. What
    interrupts the host only adds to a call, so the minimum is the program's own time.
    """
    if cache != "warm":
        raise ValueError(f"cache={cache!r} was given; the host's clock measures 'warm' only")
    calls = max(1, min(MAX_CALLS, int(MAX_CALLS_S / call_s))) if call_s else MAX_CALLS

    def call() -> float:
        work.prepare()
        drain()
        start = time.perf_counter()
        work.run()
        return time.perf_counter() - start

    samples = [min(call() for _ in range(calls)) for _ in range(count)]
    while_busy()
    return samples


@dataclass(frozen=True)
class Visit:
    """The samples of one visit."""

    samples_s: list[float]
    """Samples in the order in which they were taken."""

    throttled: list[int]
    """Indices of the samples during which the device reported throttling."""

    reasons: list[str]
    """The reported reasons."""


def visit(
    clock: Clock, work: Workload, cache: Cache, stop: Stop = Stop(), throttling: Callable[[], list[str]] = lambda: []
) -> Visit:
    """Sample warm work until `stop`; `throttling` returns the current reasons for throttling.

    A batch has 5 samples, or as many as fit into the time budget: a step of two seconds is sampled once.
    """
    batch = max(1, min(BATCH, int(stop.max_seconds / clock.call_s))) if clock.call_s else BATCH
    samples: list[float] = []
    throttled: list[int] = []
    reasons: dict[str, None] = {}
    begin = time.perf_counter()
    with no_garbage_collection():
        while not samples or not stop.reached(samples, time.perf_counter() - begin):
            now: list[str] = []
            count = min(batch, stop.max_samples - len(samples))
            samples += clock.batch(work, cache, count, lambda now=now: now.extend(throttling()))  # type: ignore[misc]
            if now:
                throttled += range(len(samples) - count, len(samples))
                reasons |= dict.fromkeys(now)
    return Visit(samples, throttled, list(reasons))


def alternate(
    arms: Sequence[tuple[Clock, Workload]],
    cache: Cache,
    samples: int,
    while_busy: Callable[[int, int], None] = lambda arm, number: None,
) -> list[list[float]]:
    """Take `samples` of each warm arm, one at a time, in reversed order every second time: A B B A.

    Most of a GPU's noise is drift, which is the same for all arms within a millisecond. `while_busy(arm, number)` is
    called while the device works on that sample, or after.
    """
    samples_s: list[list[float]] = [[] for _ in arms]
    with no_garbage_collection():
        for number in range(samples):
            for index in range(len(arms)) if number % 2 == 0 else reversed(range(len(arms))):
                clock, work = arms[index]
                samples_s[index] += clock.batch(work, cache, 1, lambda: while_busy(index, number))  # noqa: B023 - called in batch
    return samples_s


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, which would take time, and free a cycle's tensors, at an arbitrary moment."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
