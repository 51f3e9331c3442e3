"""Five clocks for work on a GPU. They measure different quantities, and none replaces another.

cuda_events   device time from the call's first kernel to its last, gaps between kernels included
cuda_graph    device time of a call in a CUDA graph of many: for work shorter than a launch; warm only
device_busy   time during which the device is busy with the call, by the profiler: for host-bound work
gpu_wall      wall time of the call: launches, gaps and synchronization included
host          the host's time to launch the call, the device at rest
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from perf.harness.case import Cache, ClockName
from perf.harness.clock import WARM_UP_S, Clock, host_samples
from perf.harness.profiler import Activity, device_activity
from perf.harness.spans import covered_s
from perf.workloads.workload import Workload

FLUSH_BYTES = 256 * 2**20  # as in triton.testing.do_bench; over four times the 60 MB L2 of an H200

LEAD_MARGIN = 2.0  # over the median of three calls
MAX_LEAD_S = 0.005  # a longer lead would overflow the launch queue (about 1000 kernels): such work is host-bound
CYCLES_PER_S = 2e9  # of an SM, approximately: only the duration of a wait depends on it
RETAKES = 3  # of samples that the host or the profiler spoiled

MAX_CALLS_IN_GRAPH = 100  # the start of a graph takes 12 us (H200): 0.1 us a call
MAX_CAPTURE_S = 0.05

MARKER = "spin_kernel"  # the kernel that torch.cuda._sleep launches


class _CudaClock:
    """The warm-up that all clocks share."""

    name: ClockName
    call_s = 0.0

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._first_lead_s = self._lead_s = 0.0

    def warm_up(self, work: Workload, read_state: Callable[[], dict] | None = None) -> dict:
        """Run for WARM_UP_S, estimate the host's time per call, and read the state while the GPU is busy."""
        begin = time.perf_counter()
        _call(work)
        self._torch.cuda.synchronize()
        may_be_long = time.perf_counter() - begin >= WARM_UP_S  # or it compiled
        state = self._time_calls(work, 1, read_state if may_be_long else None)
        if self.call_s >= WARM_UP_S and may_be_long:
            return state
        self._time_calls(work, 3)
        for _ in range(min(1000, int(WARM_UP_S / self.call_s) + 1)):
            _call(work)
        end, _ = self._events()
        end.record()
        return self._state_until(end, read_state)

    def _state_until(self, end: Any, read_state: Callable[[], dict] | None) -> dict:
        """Read the state while the device works towards the event `end`, then wait for the event."""
        state = read_state() | {"under_load": not end.query()} if read_state else {}
        end.synchronize()
        return state

    def _time_calls(self, work: Workload, calls: int, read_state: Callable[[], dict] | None = None) -> dict:
        """Estimate the time of a call and the host's time to queue it; return the state read meanwhile."""
        start, end = self._events()
        start.record()
        queued_s = [_seconds_to_queue(work) for _ in range(calls)]
        end.record()
        state = self._state_until(end, read_state)
        # The time of the slower: host or device.
        self.call_s = max(start.elapsed_time(end) * 1e-3 / calls, 1e-6)
        host_s = LEAD_MARGIN * statistics.median(queued_s)
        self._first_lead_s = min(host_s, MAX_LEAD_S)
        self._lead_s = self._first_lead_s if self.call_s < host_s else 0.0
        return state

    def _wait_on_device(self, seconds: float) -> None:
        if seconds:
            self._torch.cuda._sleep(int(seconds * CYCLES_PER_S))

    def _set_cache(self, cache: Cache) -> None:
        if cache == "cold":
            _flush_buffer().zero_()

    def _events(self) -> tuple[Any, Any]:
        return self._torch.cuda.Event(enable_timing=True), self._torch.cuda.Event(enable_timing=True)


class EventClock(_CudaClock):
    """cuda_events: device time between two CUDA events around each call.

    Python needs 10 to 300 us to launch a call, and many kernels take less. A wait on the device before each sample lets
    the host queue the whole call behind it, so that the events do not include host time. They do for a call of more
    kernels than fit into the queue (`MAX_LEAD_S`). Work that takes the GPU longer than the host needs no wait after a
    batch's first sample, and gets none: a pause would cool the GPU (8192^3 matmul, H200: 7 % faster than without).
    """

    name: ClockName = "cuda_events"

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Take `count` samples back to back; retake a sample, up to `RETAKES` times, if the host queued it too late.

        A host that became busy after the warm-up turned 50 us of two kernels into 50 to 250 us for a whole visit.
        """
        samples: list[float] = []
        for retakes_left in range(RETAKES, -1, -1):
            taken = [self._queue(work, cache, index) for index in range(count - len(samples))]
            if retakes_left == RETAKES:
                while_busy()
            self._torch.cuda.synchronize()
            samples += [start.elapsed_time(end) * 1e-3 for start, end, late in taken if not (late and retakes_left)]
            if len(samples) == count:
                break
        return samples

    def _queue(self, work: Workload, cache: Cache, index: int) -> tuple[Any, Any, bool]:
        """Queue one call; return the events around it, and whether the device reached it before it was all queued.

        A late call doubles the next waits. Work that no allowed wait can cover never counts as late.
        """
        work.prepare()
        self._wait_on_device(self._lead_s if index else self._first_lead_s)
        self._set_cache(cache)
        start, end = self._events()
        start.record()
        work.run()
        end.record()
        late = self._first_lead_s < MAX_LEAD_S and start.query()
        if late:
            self._first_lead_s, self._lead_s = (
                min(2 * lead, MAX_LEAD_S) for lead in (self._first_lead_s, self._lead_s)
            )
        return start, end, late


class GraphClock(_CudaClock):
    """cuda_graph: device time of a CUDA graph of consecutive calls, divided by their number.

    Between two calls there is neither host nor event, only the device's own gap between two kernels (0.9 us with an
    empty kernel on an H200). `prepare` runs once, before the capture. An uncapturable workload raises torch's error.
    """

    name: ClockName = "cuda_graph"

    def warm_up(self, work: Workload, read_state: Callable[[], dict] | None = None) -> dict:
        """Warm up like every clock, then capture the graph."""
        state = super().warm_up(work, read_state)
        self._calls = max(1, min(MAX_CALLS_IN_GRAPH, int(MAX_CAPTURE_S / self.call_s)))
        stream = self._torch.cuda.Stream()
        stream.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(stream):  # libraries allocate their workspaces for this stream before the capture
            for _ in range(3):
                _call(work)
        self._torch.cuda.current_stream().wait_stream(stream)
        work.prepare()
        self._graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(self._graph, stream=stream):
            for _ in range(self._calls):
                work.run()
        self._graph.replay()
        self._torch.cuda.synchronize()
        return state

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Time `count` replays."""
        if cache != "warm":
            raise ValueError(f"cache={cache!r} was given; a CUDA graph measures 'warm' only")
        pairs = []
        self._wait_on_device(MAX_LEAD_S)
        for _ in range(count):
            start, end = self._events()
            start.record()
            self._graph.replay()
            end.record()
            pairs.append((start, end))
        while_busy()
        self._torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 / self._calls for start, end in pairs]


class BusyClock(_CudaClock):
    """device_busy: time during which at least one kernel, copy or fill of a call runs, by torch.profiler (CUPTI).

    Host time between two kernels does not count: a step of 48 linear layers keeps an H200 busy for 1.8 ms and takes 3.5
    to 4.3 ms by the wall clock.
    """

    name: ClockName = "device_busy"

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Take `count` samples in one profiler session, each between two marker kernels."""

        def calls() -> None:
            for _ in range(count):
                work.prepare()
                self._set_cache(cache)
                self._torch.cuda._sleep(0)
                work.run()
                self._torch.cuda._sleep(0)
            while_busy()

        for _ in range(1 + RETAKES):  # the profiler occasionally loses an activity
            busy, markers = _between_markers(device_activity(calls))
            if markers == 2 * count:
                return [covered_s(spans) for spans in busy]
        raise RuntimeError(f"the profiler saw {markers} of {2 * count} markers: no device-busy time")


class GpuWallClock(_CudaClock):
    """gpu_wall: the host's clock from before the call until the device has finished it."""

    name: ClockName = "gpu_wall"

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Take `count` samples, one after the other."""
        samples = []
        for _ in range(count):
            work.prepare()
            self._set_cache(cache)
            self._torch.cuda.synchronize()
            start = time.perf_counter()
            work.run()
            self._torch.cuda.synchronize()
            samples.append(time.perf_counter() - start)
        while_busy()
        return samples


class CudaHostClock(_CudaClock):
    """host: from call to return on the host, for the cost of a launch: the device may still be working."""

    name: ClockName = "host"

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Take `count` samples; see `host_samples`."""
        drain = self._torch.cuda.synchronize
        return host_samples(work, cache, count, self.call_s, drain=drain, while_busy=while_busy)


CUDA_CLOCKS: dict[str, Callable[[], Clock]] = {
    clock.name: clock for clock in (EventClock, GraphClock, BusyClock, GpuWallClock, CudaHostClock)
}


def _between_markers(activities: Iterable[Activity]) -> tuple[list[list[tuple[float, float]]], int]:
    """Return the spans of the activities between each odd marker and the next, and the number of markers."""
    busy: list[list[tuple[float, float]]] = []
    markers = 0
    for activity in activities:
        if MARKER in activity.name:
            markers += 1
            if markers % 2:
                busy.append([])
        elif markers % 2:
            busy[-1].append((activity.start_s, activity.end_s))
    return busy, markers


@functools.cache
def _flush_buffer() -> Any:
    import torch

    return torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")


def _call(work: Workload) -> None:
    work.prepare()
    work.run()


def _seconds_to_queue(work: Workload) -> float:
    work.prepare()
    begin = time.perf_counter()
    work.run()
    return time.perf_counter() - begin
