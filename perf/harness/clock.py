"""Samples of one piece of work: CUDA events on a GPU, the wall clock on a CPU, behind one interface.

A visit is one stay at a case: warm-up, then samples until the median is known well enough or the budget is spent.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from perf.harness.case import Cache
from perf.workloads.workload import Workload

FLUSH_BYTES = 256 * 2**20  # over four times the 60 MB L2 of an H200, and what triton.testing.do_bench writes
WARM_UP_S = 0.025
BATCH = 5

LEAD_MARGIN = 2.0  # over the median of three calls
MAX_LEAD_S = 0.005  # beyond it the launch queue (about 1000 kernels) is full anyway: such work is host-bound
CYCLES_PER_S = 2e9  # of an SM; only the length of a wait depends on it


@dataclass(frozen=True)
class Stop:
    """When a visit has enough samples."""

    min_samples: int = 10
    max_samples: int = 60
    max_seconds: float = 0.25
    """Wall time of the sampling; checked between batches of 5, and never before the first of them."""

    precision: float = 0.005
    """Half-width of the median's 95 % interval over the median at which sampling ends early."""

    def reached(self, samples: list[float], seconds: float) -> bool:
        """Whether to stop after these samples (seconds each) and this much wall time."""
        if len(samples) >= self.max_samples or seconds >= self.max_seconds:
            return True
        return len(samples) >= self.min_samples and median_half_width(samples) <= self.precision


def median_half_width(samples: list[float]) -> float:
    """Relative half-width of a 95 % interval of the median: 1.57 IQR / sqrt(n) (McGill, Tukey, Larsen 1978)."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return 1.57 * (high - low) / len(samples) ** 0.5 / middle if middle > 0 else 0.0


class CudaClock:
    """Device time between two CUDA events around each call, seconds.

    Python needs 10 to 300 us to launch a call, many kernels need less. So a device-side wait goes before a sample, long
    enough for the host to queue the whole call behind it: the events never see the host. Work that keeps the GPU busy
    for longer than the host needs is ahead by itself after a batch's first sample, and waits no more: a pause would
    cool the GPU (8192^3 matmul, H200: 7 % faster than without).
    """

    name = "cuda_events"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._flush_buffer = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._first_lead_s = self._lead_s = 0.0

    def warm_up(self, work: Workload, read_state: Callable[[], dict] | None = None) -> dict:
        """Run for WARM_UP_S, find out how long the host needs per call, read the state while the GPU is busy."""
        self._call(work)
        self._torch.cuda.synchronize()
        start, end = self._events()
        start.record()
        queued_s = [self._seconds_to_queue(work) for _ in range(3)]
        end.record()
        end.synchronize()
        call_s = max(start.elapsed_time(end) * 1e-3 / len(queued_s), 1e-6)  # of host or device, whichever is slower
        host_s = LEAD_MARGIN * statistics.median(queued_s)
        self._first_lead_s = min(host_s, MAX_LEAD_S)
        self._lead_s = self._first_lead_s if call_s < host_s else 0.0
        runs = min(1000, int(WARM_UP_S / call_s) + 1)
        for _ in range(runs):
            self._call(work)
        if read_state is None:
            self._torch.cuda.synchronize()
            return {}
        end.record()
        state = read_state()
        state["under_load"] = not end.query()
        end.synchronize()
        return state

    def batch(self, work: Workload, cache: Cache, count: int) -> list[float]:
        """`count` samples, queued back to back; warm up first."""
        pairs = []
        for index in range(count):
            work.prepare()
            if lead_s := self._lead_s if index else self._first_lead_s:
                self._torch.cuda._sleep(int(lead_s * CYCLES_PER_S))
            if cache == "cold":
                self._flush_buffer.zero_()
            start, end = self._events()
            start.record()
            work.run()
            end.record()
            pairs.append((start, end))
        self._torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairs]

    def _seconds_to_queue(self, work: Workload) -> float:
        work.prepare()
        begin = time.perf_counter()
        work.run()
        return time.perf_counter() - begin

    def _events(self):
        return (
            self._torch.cuda.Event(enable_timing=True),
            self._torch.cuda.Event(enable_timing=True),
        )

    @staticmethod
    def _call(work: Workload) -> None:
        work.prepare()
        work.run()


class WallClock:
    """Wall time of each call, seconds; CPU work only, where there is no L2 to flush between samples."""

    name = "wall"

    def warm_up(self, work: Workload, read_state: Callable[[], dict] | None = None) -> dict:
        """Run until WARM_UP_S has passed, at least twice."""
        end, runs = time.perf_counter() + WARM_UP_S, 0
        while runs < 2 or time.perf_counter() < end:
            work.prepare()
            work.run()
            runs += 1
        return read_state() if read_state else {}

    def batch(self, work: Workload, cache: Cache, count: int) -> list[float]:
        """`count` samples, one after the other."""
        if cache == "cold":
            raise ValueError("cache='cold' was given; the wall clock measures 'warm' only")
        samples = []
        for _ in range(count):
            work.prepare()
            start = time.perf_counter()
            work.run()
            samples.append(time.perf_counter() - start)
        return samples


Clock = CudaClock | WallClock


def visit(clock: Clock, work: Workload, cache: Cache, stop: Stop = Stop()) -> list[float]:
    """Samples of one visit, seconds, in the order in which they were taken. Warm up first."""
    samples: list[float] = []
    begin = time.perf_counter()
    with _no_garbage_collection():
        while not samples or not stop.reached(samples, time.perf_counter() - begin):
            samples += clock.batch(work, cache, min(BATCH, stop.max_samples - len(samples)))
    return samples


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
