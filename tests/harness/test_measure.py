"""A visit inside a worker: the first visit's check and memory are shared by all clocks of a case."""

import sys
from pathlib import Path

import pytest

from perf.harness import measure
from perf.harness.case import Case
from perf.harness.clock import WallClock
from perf.harness.instruments import Instruments
from perf.options import Terminated
from perf.workloads.workload import Floor, Workload, WrongResult

CEILINGS = {"matmul_flops_per_s": {}, "copy_bytes_per_s": 1e15}


@pytest.fixture
def checks(monkeypatch):
    """A worker whose work writes down that it was checked: with which parameters."""
    log = []

    def build(name, params, device):
        def check():
            log.append(params)
            if params.get("wrong"):
                raise WrongResult("off by 1")
            if "exits" in params:
                sys.exit(params["exits"])
            return 0.25

        return Workload(run=lambda: sum(range(1000)), check=check, floor=Floor(flops=7.0))

    monkeypatch.setattr(measure, "build", build)
    worker = measure.Worker("cpu", Path(__file__).parents[2])
    worker.instruments._makers["other"] = WallClock

    def visit(first=True, **params):
        case = Case("a.B", "controls", params, "cpu", params.get("clock", "wall"), "warm")
        stop = {"max_samples": 3, "max_seconds": 1e-3}
        return worker.answer({"case": case.to_json(), "first": first, "stop": stop, "ceilings": CEILINGS})

    return visit, log


def test_a_cell_is_examined_once_for_all_of_its_clocks(checks):
    visit, log = checks
    first, second = visit(n=1, clock="wall"), visit(n=1, clock="other")
    assert len(log) == 1
    assert first["error"] == second["error"] == 0.25
    assert first["floor"] == second["floor"]
    assert first["samples_ns"]
    assert second["samples_ns"]
    visit(n=2, clock="other")
    assert len(log) == 2


def test_later_visits_examine_nothing(checks):
    visit, log = checks
    assert "error" not in visit(first=False, n=1)
    assert not log


def test_code_that_exits_is_an_error_and_the_worker_lives(checks):
    visit, _ = checks
    reply = visit(exits=0)
    assert (reply["status"], reply["reason"]) == ("error", "SystemExit: 0")
    assert visit(n=1)["status"] == "ok"


def test_a_cell_that_failed_fails_with_its_other_clock_too(checks):
    visit, log = checks
    assert [visit(n=1, wrong=True, clock=clock)["status"] for clock in ("wall", "other")] == ["wrong", "wrong"]
    assert len(log) == 2


def test_only_one_work_at_a_time_is_held_on_a_gpu(monkeypatch):
    """A compiled model is part of a cycle: without a collection the next one is built beside it."""
    log = []

    class Works:
        def release(self):
            log.append("release")

    class Held:
        def __del__(self):
            log.append("gone")

    def make():
        held = Held()
        return Workload(run=lambda: log.append("run"), check=lambda: held and 0.0, floor=Floor())

    def peak_memory(build, leftovers):
        log.append("memory")
        return {"peak_bytes": 7}

    monkeypatch.setattr(measure, "peak_memory", peak_memory)
    monkeypatch.setattr(Instruments, "synchronize", lambda instruments: None)
    monkeypatch.setattr(measure, "explain", lambda work: log.append("explain") or {"kernels": []})
    instruments = Instruments("cuda")
    instruments.leftovers = Works()
    case = Case("a.B", "controls", {}, "cuda", "gpu_wall", "warm")
    found = measure.examine(instruments, case, make, None, measure.Spent())
    assert log == ["run", "explain", "gone", "memory", "release"]
    assert found["peak_bytes"] == 7


def test_a_signal_that_ends_the_command_is_no_failure_of_an_arm():
    def end():
        raise Terminated(143)

    with pytest.raises(Terminated):
        Instruments("cpu").with_status(end)
