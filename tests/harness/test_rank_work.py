"""A rank's replies: samples, calls a sample, spans, errors; by a fake clock."""

import pytest
import torch
import torch.distributed as dist

from perf.harness import injection, rank_work
from perf.harness.profiler import Activity
from perf.harness.rank_work import CALLS, RUNS_BEFORE, RankWork
from perf.workloads.workload import Floor, Unavailable, Workload, WrongResult
from tests.distributed.ranks import spawn


class Time:
    """Goes on only where something says so."""

    now = 0.0

    def perf_counter(self):
        return self.now


def rank_with(work):
    made = RankWork("cpu")
    made._arm.work = work
    return made


def workload(run, **kwargs):
    return Workload(run=run, check=lambda: 0.0, floor=Floor(), **kwargs)


def take_samples_of_a_difference(rank):
    """The calls of a sample, in order, and the reply to it: a run takes 5 s, `without` 2 s, a preparation 100 s."""
    rank_work.time, log = Time(), []

    def doing(what, seconds):
        def do():
            log.append(what)
            rank_work.time.now += seconds

        return do

    dist.barrier = doing("barrier", 50.0)
    made = rank_with(workload(doing("run", 5.0), prepare=doing("prepare", 100.0), without=doing("without", 2.0)))
    return log, made.answer({"do": "take", "count": 1})


def test_a_sample_begins_at_a_barrier_and_the_arms_of_a_difference_come_first_and_last_equally_often():
    ready = ["prepare", "barrier"]
    log = [*ready, "run", *ready, "without", *ready, "without", *ready, "run"]
    answer = {"status": "ok", "samples_s": [5.0, 5.0], "without_s": [2.0, 2.0]}
    assert spawn(take_samples_of_a_difference, 2) == [(log, answer)] * 2


def warm_up_twice(rank, times):
    """The reply and the number of runs of a warm-up of 25 ms, for two cases in turn; a run takes `times[rank]`."""
    rank_work.time, runs, found = Time(), [], []

    def run():
        runs.append(rank)
        rank_work.time.now += times[rank]

    rank_work.build = lambda *_: workload(run)
    made = RankWork("cpu")
    for _ in range(2):
        assert made.answer({"do": "build", "case": {"workload": "any", "params": {}}})["status"] == "ok"
        runs.clear()
        found.append((made.answer({"do": "warm_up", "seconds": 0.025})["call_s"], len(runs)))
        (sample,) = made.answer({"do": "take", "count": 1})["samples_s"]
        assert sample == pytest.approx(times[rank]), "of one call, however many there were"
    return found


@pytest.mark.parametrize(
    ("times", "call_s", "runs"),
    [
        ((1e-4, 4e-4), CALLS * 4e-4, 2 + CALLS * 3),
        ((1e-4, 4e-3), 4e-3, 2 + 6),  # too long on one rank: one call on both
    ],
    ids=["short", "short on one rank"],
)
def test_the_slowest_rank_says_how_many_calls_make_a_sample_and_the_next_case_asks_again(times, call_s, runs):
    for found in spawn(warm_up_twice, 2, times):
        assert found == [(pytest.approx(call_s), runs)] * 2


def watch_spans(rank):
    names = {"aten::mm": [(1.0, 3.0), (1.5, 2.0), (2.5, 4.0), (6.0, 7.0)], "gloo:all_reduce": [(3.5, 5.0)]}
    waits = {"c10d::allreduce_": [(0.0, 9.0)]}
    activities = [Activity(name, *span) for name, spans in (names | waits).items() for span in spans]
    rank_work.host_activity = lambda run: sorted(activities, key=lambda one: one.start_s)
    return rank_with(workload(lambda: None)).answer({"do": "spans"})


def test_spans_are_the_unions_of_what_computes_and_of_what_communicates_from_the_first_work_on():
    spans = {"compute": [(0.0, 3.0), (5.0, 6.0)], "communication": [(2.5, 4.0)]}
    assert spawn(watch_spans, 1) == [{"status": "ok"} | spans]


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Unavailable("no such precision"), "unavailable", "no such precision"),
        (WrongResult("off by 1"), "wrong", "off by 1"),
        (torch.OutOfMemoryError("CUDA out of memory\nand much more"), "out_of_memory", "CUDA out of memory"),
        (KeyError("what"), "error", "KeyError: 'what'"),
        (ValueError(), "error", "ValueError"),
        (SystemExit(0), "error", "SystemExit: 0"),
        (MemoryError(), "out_of_memory", "MemoryError"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 GB"),
            "out_of_memory",
            "DefaultCPUAllocator: can't allocate memory: 8 GB",
        ),
    ],
    ids=lambda value: value if value in ("unavailable", "wrong", "out_of_memory", "error") else "",
)
def test_an_error_is_an_answer(error, status, reason):
    def fail():
        raise error

    work = Workload(run=fail, check=fail, floor=Floor())
    assert rank_with(work).answer({"do": "check"}) == {"status": status, "reason": reason}


def test_the_case_before_is_let_go_before_the_next_is_built(monkeypatch):
    made, log = rank_with(workload(lambda: None)), []
    monkeypatch.setattr(rank_work, "build", lambda *_: log.append(("build", made._arm.work)) or workload(lambda: None))
    monkeypatch.setattr(made._leftovers, "release", lambda: log.append(("release", made._arm.work)))
    assert made.answer({"do": "build", "case": {"workload": "any", "params": {}}})["status"] == "ok"
    assert log == [("release", None), ("build", None)]


def test_an_injection_slows_every_run_after_it_down_by_its_share(monkeypatch):
    log = []
    monkeypatch.setattr(rank_work, "build", lambda *_: workload(lambda: log.append("run")))
    monkeypatch.setattr(injection, "_host_spin", lambda seconds: lambda: log.append(f"{seconds} s"))
    made = RankWork("cpu")
    case = {"workload": "any", "params": {}}
    made.answer({"do": "build", "case": case, "injection": {"kind": "host", "size": 0.5}})
    for request in ({"do": "run"}, {"do": "slow_down", "seconds": 3.0}, {"do": "run"}):
        assert made.answer(request) == {"status": "ok"}
    assert log == ["run", "run", "1.5 s"]
    made.answer({"do": "build", "case": case})
    made.answer({"do": "run"})
    assert log[3:] == ["run"], "the next case is as it is"


def watch_spans_of_a_gpu(rank):
    """The reply and the launches of a fake device, a second each."""
    found, log = [], []

    def doing(name, stream=0):
        def do(*_):
            log.append(name)
            if name != "barrier":
                found.append(Activity(name, len(found), len(found) + 1.0, stream))

        return do

    dist.barrier, torch.cuda._sleep = doing("barrier"), doing("at::spin_kernel(long)")
    torch.cuda.synchronize = lambda: None
    rank_work.device_activity = lambda run: (run(), found)[1]
    step = [doing("gemm"), doing("ncclKernel", 1), doing("Memcpy DtoD"), doing("Memcpy PtoP", 2)]
    made = rank_with(workload(lambda: [launch() for launch in step]))
    made._device = "cuda"
    return made.answer({"do": "spans"}), log


def test_the_spans_of_a_gpu_are_those_of_the_last_of_several_runs_at_the_clock_of_work():
    ((answer, log),) = spawn(watch_spans_of_a_gpu, 1)
    run = ["gemm", "ncclKernel", "Memcpy DtoD", "Memcpy PtoP"]
    assert log == [*["barrier", *run] * RUNS_BEFORE, "barrier", "at::spin_kernel(long)", *run]
    spans = {"compute": [(0.0, 1.0), (2.0, 3.0)], "communication": [(1.0, 2.0), (3.0, 4.0)]}
    assert answer == {"status": "ok"} | spans, "copies beside the kernels compute, those in a stream alone do not"


def test_an_arm_is_built_beside_those_before_it_and_the_first_takes_the_place_of_all(monkeypatch):
    log = []
    monkeypatch.setattr(rank_work, "build", lambda name, *_: workload(lambda: log.append(name)))
    made = RankWork("cpu")
    for arm, name in enumerate("ab"):
        assert made.answer({"do": "build", "arm": arm, "case": {"workload": name, "params": {}}})["status"] == "ok"
    for arm in (1, 0, 1):
        made.answer({"do": "run", "arm": arm})
    assert log == ["b", "a", "b"]
    made.answer({"do": "build", "case": {"workload": "c", "params": {}}})
    assert made.answer({"do": "run", "arm": 1})["status"] == "error", "it was let go"
