"""What a sample is, and when there are enough of them."""

import pytest
import torch

from perf.harness import ceilings
from perf.harness.clock import Stop, WallClock, median_half_width, visit
from perf.harness.measure import TooFast, hold_to_floor
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
    samples = visit(WallClock(), work, "warm", Stop(min_samples=7, max_samples=7))
    assert len(samples) == 7
    assert log == [("prepare", None), ("run", False)] * 7
    assert gc.isenabled()


def test_the_wall_clock_refuses_to_call_a_series_cold():
    with pytest.raises(ValueError, match="'cold' was given"):
        visit(WallClock(), workload(lambda: None), "cold")


def test_a_fabricated_time_below_the_floor_is_rejected():
    matmul = Floor(flops=2 * 8192**3, matmul_dtype="bfloat16")
    least = matmul.flops / 800e12
    hold_to_floor(least / 1.04, matmul, CEILINGS, "warm", L2)
    with pytest.raises(TooFast, match="below the physical floor"):
        hold_to_floor(least / 1.06, matmul, CEILINGS, "warm", L2)


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


@pytest.mark.gpu
def test_peak_memory_is_the_same_bytes_whatever_ran_before():
    from perf.harness.memory import peak_allocated_bytes
    from perf.workloads import build

    params = {"seq_len": 2048, "d": 64, "dtype": "bfloat16", "mode": "forward_backward", "impl": "reference"}

    def peak():
        build("attention", params, "cuda").run()
        return peak_allocated_bytes(lambda: build("attention", params, "cuda"))

    first = peak()
    kept = [torch.empty(size, device="cuda") for size in (3, 10_007, 5_000_011)]
    torch.randn(3000, 3000, device="cuda") @ torch.randn(3000, 3000, device="cuda")
    assert peak() == first
    del kept
    assert peak() == first
