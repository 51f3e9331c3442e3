"""A time below the floor: the ceilings are measured again before it is refused, in every worker."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perf.harness import ceilings
from perf.harness.bench import Bench
from perf.harness.case import Case
from perf.harness.ceilings import COPY, RESTS_S, TooFast
from perf.harness.clock import Stop, WallClock
from perf.harness.comparison import Comparer
from perf.harness.instruments import Instruments
from perf.harness.measure import Spent, Worker
from perf.harness.pair import PairWorker
from perf.harness.records import best_ceilings
from perf.workloads.workload import Floor, Workload

ROOT = Path(__file__).parents[2]
CASE = Case("a.B", "controls", {}, "cpu", "wall", "warm")
SLOW, FAST = 10.0, 40.0
"""FLOP/s. Work of 64 FLOPs takes no less than 3.2 s by the first, 0.8 s by the second; its samples take 1 s."""


class Constant(WallClock):
    """Every sample takes 1 s."""

    call_s = 1.0

    def warm_up(self, work, read_state=None):
        return {}

    def batch(self, work, cache, count, while_busy=lambda: None):
        while_busy()
        return [1.0] * count


def work(flops: float = 64.0) -> Workload:
    return Workload(run=lambda: None, check=lambda: 0.0, floor=Floor(flops=flops, matmul_dtype="float32"))


def rates(flops_per_s: float) -> dict:
    return {"matmul_flops_per_s": {"float32": flops_per_s, "bfloat16": 1.0}, "copy_bytes_per_s": 1.0}


@pytest.fixture
def device(monkeypatch):
    """A fake device: the next measured rates, the measured kinds, and the rests before them."""
    fake = SimpleNamespace(flops_per_s=[], kinds=[], rests_s=[])

    def measure(clock, kinds=None):
        fake.kinds.append(kinds)
        return {"matmul_flops_per_s": {"float32": fake.flops_per_s.pop(0)}}

    monkeypatch.setattr(ceilings, "measure", measure)
    monkeypatch.setattr("perf.harness.instruments.time.sleep", fake.rests_s.append)
    return fake


class NoCheckouts(PairWorker):
    """A worker of two arms without checkouts."""

    def _pin(self):
        return ""

    def _hold(self, case, arm, injection, spent):
        return Constant(), self.held

    held: Workload


def of_a_case(workload: Workload) -> Instruments:
    worker = slow(Worker("cpu", ROOT))
    worker._sample(CASE, Constant(), workload, Stop(max_samples=3))
    return worker.instruments


def of_a_pair(workload: Workload) -> Instruments:
    worker = slow(NoCheckouts("cpu", {"base": ROOT, "head": ROOT}))
    worker.held = workload
    worker._take_turns(CASE, ["base", "head"], None, Spent())
    return worker.instruments


def of_a_pair_one_after_the_other(workload: Workload) -> Instruments:
    worker = slow(NoCheckouts("cpu", {"base": ROOT, "head": ROOT}))
    worker.held = workload
    worker._one_after_the_other(CASE, ["base", "head"], None, Spent())
    return worker.instruments


def of_a_study(workload: Workload) -> Instruments:
    bench = slow(Bench("cpu"))
    bench.check(workload)
    bench.batch(Constant(), workload, "warm", 3)
    return bench.instruments


def of_laps(workload: Workload) -> Instruments:
    bench = slow(Bench("cpu"))
    bench.require_above_floor([1.0], workload.floor, "warm")
    return bench.instruments


def of_a_comparison(workload: Workload) -> Instruments:
    worker = slow(Comparer(Instruments("cpu")))
    worker.sample_in_turn({"a": (Constant(), workload), "b": (Constant(), workload)}, "warm", 2)
    return worker.instruments


WAYS = (of_a_case, of_a_pair, of_a_pair_one_after_the_other, of_a_study, of_laps, of_a_comparison)


def slow(worker):
    """Its ceilings were measured while the device was slow."""
    worker.instruments.ceilings = rates(SLOW)
    return worker


@pytest.mark.parametrize("way", WAYS)
def test_a_device_that_was_slow_when_its_ceilings_were_measured_costs_no_case(way, device):
    device.flops_per_s = [FAST]
    instruments = way(work())
    assert device.kinds == [{"float32"}], "this kind alone, and once: later samples have the greater ceiling"
    assert instruments.ceilings == rates(FAST) | {"matmul_flops_per_s": {"float32": FAST, "bfloat16": 1.0}}


@pytest.mark.parametrize("way", WAYS)
def test_a_device_that_is_slow_for_longer_is_measured_until_it_is_not(way, device):
    device.flops_per_s = [SLOW / 2, SLOW * 1.1, FAST]
    assert way(work()).ceilings["matmul_flops_per_s"]["float32"] == FAST
    assert device.rests_s == list(RESTS_S[:3]), "a GPU that rested is faster"


@pytest.mark.parametrize("way", WAYS)
def test_an_impossible_time_is_refused_all_the_same(way, device):
    device.flops_per_s = [FAST] * 9
    with pytest.raises(TooFast, match=r"1000000.00 us .*1250000.00 us"):
        way(work(flops=100.0))
    assert device.rests_s == list(RESTS_S)


@pytest.mark.parametrize("way", WAYS)
def test_a_possible_time_costs_nothing(way, device):
    assert way(work(flops=19.0)).ceilings == rates(SLOW)
    assert device.kinds == device.rests_s == []


def test_without_memory_for_it_no_ceiling_is_better(device, monkeypatch, capsys):
    def full(clock, kinds=None):
        raise torch.OutOfMemoryError("tried to allocate 1 GiB")

    monkeypatch.setattr(ceilings, "measure", full)
    with pytest.raises(TooFast, match="floor"):
        of_a_case(work())
    assert "no memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cache", "sample_s", "kinds"),
    [("cold", 0.5, {"float32", COPY}), ("warm", 0.5, {"float32"}), ("cold", 3.0, {COPY}), ("cold", 5.0, set())],
)
def test_what_makes_a_time_impossible(cache, sample_s, kinds):
    floor = Floor(flops=20.0, matmul_dtype="float32", bytes_read=4.0)
    assert ceilings.undercut(sample_s, floor, rates(SLOW), cache, 0, slack=1.0) == kinds


def test_one_kind_is_measured_alone():
    alone = ceilings.measure(WallClock(), {"float32"})
    assert alone["matmul_flops_per_s"].keys() == {"float32"} and "copy_bytes_per_s" not in alone
    assert alone["matmul_flops_per_s"]["float32"] > 0
    both = best_ceilings([{"matmul_flops_per_s": {"float32": 1.0}, "copy_bytes_per_s": 5.0}, alone])
    assert both == alone | {"copy_bytes_per_s": 5.0}
    copied = ceilings.measure(WallClock(), {COPY})
    assert copied["matmul_flops_per_s"] == {} and copied["copy_bytes_per_s"] > 0


def test_a_kind_that_is_measured_again_is_sampled_in_a_row_and_one_by_one(monkeypatch):
    log = []

    class Logged(Constant):
        def batch(self, work, cache, count, while_busy=lambda: None):
            log.append(count)
            return [0.5 if count == 1 else 1.0] * count

    monkeypatch.setattr(ceilings.time, "sleep", lambda seconds: log.append("rest"))
    again = ceilings.measure(Logged(), {"float32"})
    assert log[-4:] == ["rest", 1, "rest", 1]
    assert again["matmul_flops_per_s"]["float32"] == 2 * 512**3 / 0.5, "the best of both"
    log.clear()
    ceilings.measure(Logged())
    assert "rest" not in log
