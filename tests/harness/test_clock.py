"""The clocks' samples, and the stopping rule of a visit."""

import dataclasses
import itertools
import time
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import pytest

from perf.harness import ceilings
from perf.harness.case import Case
from perf.harness.ceilings import TooFast, require_floor
from perf.harness.clock import Stop, WallClock, median_half_width, visit
from perf.harness.cuda_clocks import CUDA_CLOCKS, FLUSH_BYTES, MARKER, MAX_LEAD_S, _between_markers
from perf.harness.instruments import Instruments
from perf.harness.profiler import Activity
from perf.harness.spans import covered_s
from perf.workloads import build
from perf.workloads.workload import Floor, Workload

CEILINGS = {"matmul_flops_per_s": {"bfloat16": 800e12}, "copy_bytes_per_s": 4e12}
L2 = 60 * 2**20


def workload(run, prepare=lambda: None):
    return Workload(run=run, check=lambda: 0.0, floor=Floor(), prepare=prepare)


def test_sampling_stops_when_the_median_is_known_and_never_before_the_minimum():
    stop = Stop(min_samples=10, max_samples=100, max_seconds=1e9, precision=0.005)
    assert not stop.reached([1.0] * 9, 0)
    assert stop.reached([1.0] * 10, 0)
    noisy = [1.0, 1.5] * 10
    assert not stop.reached(noisy, 0)
    assert stop.reached(noisy * 5, 0), "the upper bound on samples holds"
    assert stop.reached(noisy, 2e9), "the upper bound on time holds"


def test_median_half_width_shrinks_with_the_square_root_of_the_number_of_samples():
    base = [1.0, 1.1, 1.2, 1.3] * 5
    assert median_half_width(base * 4) == pytest.approx(median_half_width(base) / 2, rel=0.1)
    assert median_half_width([1.0] * 10) == 0


def test_a_visit_prepares_before_every_sample_and_collects_no_garbage_while_it_samples():
    import gc

    log = []
    work = workload(lambda: log.append(("run", gc.isenabled())), lambda: log.append(("prepare", None)))
    samples = visit(WallClock(), work, "warm", Stop(min_samples=7, max_samples=7, max_seconds=1e9)).samples_s
    assert len(samples) == 7
    assert log == [("prepare", None), ("run", False)] * 7
    assert gc.isenabled()


@pytest.mark.parametrize(("call_s", "batch"), [(0.0, 5), (1e-6, 5), (0.05, 5), (0.06, 4), (0.2, 1), (2.0, 1)])
def test_long_work_is_sampled_in_smaller_batches(call_s, batch):
    class Counting(WallClock):
        counts: ClassVar = []

        def batch(self, work, cache, count, while_busy=lambda: None):
            self.counts.append(count)
            return [call_s] * count

    clock = Counting()
    clock.call_s = call_s
    visit(clock, workload(lambda: None), "warm", Stop(max_samples=20, max_seconds=0.25))
    assert clock.counts[0] == batch


@pytest.mark.parametrize(("call_s", "runs"), [(0.01, 3), (1.0, 2)])
def test_the_wall_clocks_warm_up_says_how_long_a_call_takes(call_s, runs, monkeypatch):
    log = []
    monkeypatch.setattr(time, "perf_counter", lambda: call_s * len(log))
    clock = WallClock()
    clock.warm_up(workload(lambda: log.append("run")))
    assert clock.call_s == pytest.approx(call_s)
    assert len(log) == runs


def test_samples_taken_while_the_device_throttled_are_marked():
    reasons = iter([[], ["power brake"], ["power brake"], []])
    stop = Stop(min_samples=20, max_samples=20, max_seconds=1e9)
    found = visit(WallClock(), workload(lambda: None), "warm", stop, lambda: next(reasons))
    assert len(found.samples_s) == 20
    assert found.throttled == list(range(5, 15))
    assert found.reasons == ["power brake"]


def test_the_wall_clock_refuses_to_call_a_series_cold():
    with pytest.raises(ValueError, match="'cold' was given"):
        visit(WallClock(), workload(lambda: None), "cold")


def test_a_fabricated_time_below_the_floor_is_rejected():
    matmul = Floor(flops=2 * 8192**3, matmul_dtype="bfloat16")
    least = matmul.flops / 800e12
    require_floor(least / 1.04, matmul, CEILINGS, "warm", L2)
    with pytest.raises(TooFast, match="floor"):
        require_floor(least / 1.06, matmul, CEILINGS, "warm", L2)


def test_a_busy_cpu_may_have_been_slow_when_its_ceilings_were_measured():
    instruments = Instruments("cpu")
    instruments.ceilings = {"matmul_flops_per_s": {"float32": 1e15}, "copy_bytes_per_s": 1e15}
    case = Case("a.B", "controls", {}, "cpu", "wall", "warm")
    instruments.require_above_floor([1.0], Floor(flops=1.9e15, matmul_dtype="float32"), case.cache)
    with pytest.raises(TooFast):
        instruments.require_above_floor([1.0], Floor(flops=2.1e15, matmul_dtype="float32"), case.cache)


def test_the_floor_of_a_cold_series_counts_bytes_and_that_of_a_warm_one_does_not():
    copy = Floor(bytes_read=2**30, bytes_written=2**30)
    least = (2**30 + 2**30 - L2) / 4e12
    assert ceilings.floor_s(copy, CEILINGS, "cold", L2) == pytest.approx(least / ceilings.SLACK)
    assert ceilings.floor_s(copy, CEILINGS, "warm", L2) == 0
    small = Floor(bytes_read=2**20, bytes_written=2**20)
    assert ceilings.floor_s(small, CEILINGS, "cold", L2) == pytest.approx(2**20 / 4e12 / ceilings.SLACK)


def test_ceilings_of_a_cpu_are_positive():
    found = ceilings.measure(WallClock())
    assert found["matmul_flops_per_s"]["float32"] > 0
    assert found["copy_bytes_per_s"] > 0


def test_the_device_is_busy_where_at_least_one_span_is():
    assert covered_s([(0, 2), (1, 3), (5, 6), (5.25, 5.5)]) == pytest.approx(4)
    assert covered_s([]) == 0


@pytest.mark.parametrize(
    ("late", "kept", "leads"),
    [
        ([False] * 3, [0, 1, 2], [1e-3, 1e-4, 1e-4]),
        ([False, True, False, False], [0, 2, 3], [1e-3, 1e-4, 2e-4, 2e-3]),
        ([True] * 6, [3, 4, 5], [1e-3, 2e-4, 4e-4, 5e-3, 8e-4, 8e-4]),  # until the first wait is as long as any
    ],
)
def test_a_sample_that_the_host_was_too_late_for_is_taken_again_behind_a_longer_wait(late, kept, leads):
    class Event(NamedTuple):
        number: int

        def record(self):
            pass

        def query(self):
            return late[self.number]

        def elapsed_time(self, end):
            return self.number * 1e3

    waits, numbers = [], itertools.count()
    clock = CUDA_CLOCKS["cuda_events"]()
    clock._first_lead_s, clock._lead_s = 1e-3, 1e-4
    clock._torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    clock._wait_on_device, clock._events = waits.append, lambda: (Event(next(numbers)),) * 2
    assert clock.batch(workload(lambda: None), "warm", 3) == kept
    assert waits == pytest.approx(leads)


def test_work_that_no_wait_is_long_enough_for_is_taken_once():
    calls = []
    clock = CUDA_CLOCKS["cuda_events"]()
    clock._first_lead_s = clock._lead_s = MAX_LEAD_S
    event = SimpleNamespace(record=lambda: None, query=lambda: True, elapsed_time=lambda end: 1.0)
    clock._torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None, _sleep=lambda cycles: None))
    clock._events = lambda: (event, event)
    assert clock.batch(workload(lambda: calls.append(1)), "warm", 3) == [1e-3] * 3
    assert len(calls) == 3


def test_between_two_markers_lies_one_sample():
    names = ["before", f"{MARKER}(long)", "a", "b", f"{MARKER}(long)", "flush", f"{MARKER}(long)", "c"]
    found, markers = _between_markers(Activity(name, index, index + 1) for index, name in enumerate(names))
    assert found == [[(2, 3), (3, 4)], [(7, 8)]]
    assert markers == 3


@pytest.mark.gpu
def test_a_stall_of_the_host_is_no_part_of_the_time():
    work, clock, calls = build("controls", {"control": "launch"}, "cuda"), CUDA_CLOCKS["cuda_events"](), []
    clock.warm_up(work)

    def run():
        calls.append(1)
        if len(calls) == 4:
            time.sleep(0.05)
        work.run()

    samples = clock.batch(dataclasses.replace(work, run=run), "warm", 20)
    assert len(calls) > len(samples) == 20
    assert max(samples) < 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("name", CUDA_CLOCKS)
@pytest.mark.parametrize("control", ["launch", "linears"])
def test_every_clock_of_a_gpu_gives_as_many_samples_as_it_is_asked_for(name, control):
    work, clock = build("controls", {"control": control}, "cuda"), CUDA_CLOCKS[name]()
    clock.warm_up(work)
    calls = []
    samples = clock.batch(work, "warm", 5, lambda: calls.append("busy"))
    assert len(samples) == 5
    assert min(samples) > 0
    assert calls


@pytest.mark.gpu
def test_a_graph_is_warm_and_says_so():
    work, clock = build("controls", {"control": "launch"}, "cuda"), CUDA_CLOCKS["cuda_graph"]()
    clock.warm_up(work)
    with pytest.raises(ValueError, match="'cold' was given"):
        clock.batch(work, "cold", 5)


@pytest.mark.gpu
def test_flushing_the_cache_is_no_part_of_the_time_for_which_the_device_is_busy():
    work, clock = build("controls", {"control": "launch"}, "cuda"), CUDA_CLOCKS["device_busy"]()
    clock.warm_up(work)
    flush_s = FLUSH_BYTES / 10e12  # twice the bandwidth of any GPU there is
    assert max(clock.batch(work, "cold", 5)) < flush_s
