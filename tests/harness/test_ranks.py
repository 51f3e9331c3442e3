"""Cases on several ranks are timed by the slowest, and a failing rank fails only its case."""

import contextlib
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from perf.harness import ranks
from perf.harness.case import Case
from perf.harness.measure import Worker
from perf.harness.ranks import RankClock, Ranks
from perf.harness.worker_process import WorkerProcess
from perf.workloads.workload import Floor, Unavailable, Workload, WrongResult

ROOT = Path(__file__).parents[2]
IDLE = Workload(run=lambda: None, check=lambda: 0.0, floor=Floor())
CEILINGS = {"matmul_flops_per_s": {"float32": 1e15}, "copy_bytes_per_s": 1e15}
STEP = {
    "strategy": "bucketed",
    "bucket_size_mb": 0.1,
    "size": "tiny",
    "context_length": 16,
    "batch": 4,
    "precision": "fp32",
    "variant": "eager",
    "world_size": 2,
    "mode": "step",
}


TWO_GPUS = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")]
DEVICES = ["cpu", pytest.param("cuda", marks=TWO_GPUS)]


def case(device="cpu", **params):
    return Case("smoke.SmokeDataParallel", "data_parallel", STEP | params, device, "ranks", "warm")


def all_reduce(world_size):
    """A case without a model and an optimizer, whose processes start in half the time."""
    params = {"world_size": world_size, "megabytes": 1}
    return Case("smoke.SmokeCollectives", "collectives", params, "cpu", "ranks", "warm")


def request(one, first=True):
    return {"case": one.to_json(), "first": first, "stop": {"max_samples": 3, "max_seconds": 1e9}, "ceilings": CEILINGS}


@pytest.fixture(scope="module")
def worker():
    made = Worker("cpu", ROOT)
    yield made
    made._pool.close()


class Answers:
    """Ranks that say what they are given."""

    def __init__(self, *by_rank):
        self.by_rank = by_rank

    def ask(self, do, meanwhile, **arguments):
        meanwhile()
        return [{"samples_s": samples, "without_s": without} for samples, without in self.by_rank]


def test_a_sample_is_the_slowest_ranks():
    clock = RankClock(Answers(([1.0, 5.0], []), ([2.0, 4.0], [])))
    assert clock.batch(IDLE, "warm", 2) == [2.0, 5.0]


def test_a_difference_is_of_the_slowest_ranks_in_each_arm():
    clock = RankClock(Answers(([3.0, 5.0], [1.0, 1.0]), ([2.0, 6.0], [2.0, 0.5])))
    assert clock.batch(IDLE, "warm", 1) == [3.0], "the mean of 3 - 2 and 6 - 1"


def test_ranks_are_timed_warm():
    with pytest.raises(ValueError, match="'cold' was given"):
        RankClock(Answers()).batch(IDLE, "cold", 1)


# Instead of a rank: says what it is to say, or dies; after a while, or once there is a file.
PUPPET = """
import json, os, pathlib, sys, time
answers = {answers!r}[int(sys.argv[3])]
for line in sys.stdin:
    answer = dict(answers[json.loads(line)["do"]])
    time.sleep(answer.pop("after_s", 0))
    there = pathlib.Path(answer.pop("once_there_is", "/"))
    while not there.exists():
        time.sleep(0.01)
    if not answer:
        print("what happened", "last words", sep="\\n", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    print(json.dumps({{"status": "ok"}} | answer), flush=True)
"""


@pytest.fixture
def puppets(tmp_path, monkeypatch):
    """Ranks that answer each question as given, a dictionary a rank."""
    made = []

    def make(*answers):
        script = tmp_path / "puppet.py"
        script.write_text(PUPPET.format(answers=answers))
        monkeypatch.setattr(ranks, "SCRIPT", script)
        made.append(Ranks("cpu", len(answers), ROOT))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_death_is_the_reason_even_if_what_it_meant_to_another_rank_is_noticed_first(puppets, monkeypatch, capfd):
    monkeypatch.setattr(ranks, "CAUSE_S", 100.0)  # a busy machine may be slow to start the process that dies
    made = puppets({"run": {"status": "error", "reason": "connection reset"}}, {"run": {"after_s": 0.2}}, {"run": {}})
    with pytest.raises(RuntimeError, match=r"rank [12]: .*SIGKILL.*last words"):
        made.ask("run")
    assert not made.alive
    assert "last words" in capfd.readouterr().err


NCCL_TIMEOUT = """
[rank0]:[E1122 00:00:00.000000000 ProcessGroupNCCL.cpp:685] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=4000) ran for 4005 ms before timing out.
[rank0]:[E1122 00:00:00.000000001 ProcessGroupNCCL.cpp:2106] Process group watchdog thread terminated with exception: \
[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)
Exception raised from checkTimeout at ProcessGroupNCCL.cpp:688 (most recent call first):
frame #0: c10::Error::Error + 0x80 (0x7f00)
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [Rank 0] Process group watchdog thread terminated with exception
frame #1: clone + 0x44 (0x7f01)
"""
CUDA_ERROR = """
terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: an illegal memory access was encountered
frame #0: clone + 0x44 (0x7f01)
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            NCCL_TIMEOUT,
            r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=5, OpType=ALLREDUCE, .*4000\).*",
        ),
        (CUDA_ERROR, r"CUDA error: an illegal memory access was encountered"),
        ("one\nTypeError: two\n", r"TypeError: two"),
        ("", r""),
    ],
)
def test_cause_of_death_say_why_and_not_where(log, words):
    assert re.fullmatch(words, ranks._cause_of_death(log))


KINDS = {
    "unavailable": Unavailable,
    "wrong": WrongResult,
    "out_of_memory": torch.OutOfMemoryError,
    "error": RuntimeError,
}


@pytest.mark.parametrize("status", KINDS)
def test_a_bad_answer_raises_by_its_kind_with_the_rank_and_without_a_wait_for_the_others(puppets, status, monkeypatch):
    monkeypatch.setattr(ranks, "CAUSE_S", 0.1)
    made = puppets({"run": {"once_there_is": "/never"}}, {"run": {"status": status, "reason": "why"}})
    with pytest.raises(KINDS[status], match=r"^rank 1: why$") as raised:
        made.ask("run")
    assert type(raised.value) is KINDS[status]


@pytest.mark.parametrize("is_difference", [False, True])
def test_a_case_is_as_far_off_and_as_large_as_its_worst_rank(puppets, is_difference):
    built = {"build": {"floor": {"flops": 3.0}, "is_difference": is_difference}}
    made = puppets(
        built | {"check": {"error": 0.1}, "memory": {"peak_bytes": 5}},
        built | {"check": {"error": 0.3}, "memory": {"peak_bytes": 7}},
        built | {"check": {"error": 0.2}, "memory": {"peak_bytes": 6}},
    )
    work = made.build(case())
    assert (work.floor, work.without is not None) == (Floor(flops=3.0), is_difference)
    assert work.check() == 0.3
    assert made.memory() == {"peak_bytes": 7}


def test_every_rank_has_spans_of_its_own(puppets):
    spans = [{"compute": [[0.0, 1.0 + rank]], "communication": [[rank, 2.0]]} for rank in range(2)]
    assert puppets(*({"spans": one} for one in spans)).spans() == spans


def test_the_devices_state_is_read_while_the_ranks_work(puppets, tmp_path):
    read = tmp_path / "read"
    take = {"once_there_is": str(read), "samples_s": [1.0], "without_s": []}
    clock = RankClock(puppets(*[{"warm_up": {"call_s": 0.5}, "take": take}] * 2))

    def read_state():
        read.touch()
        return {"clock": 1}

    assert clock.warm_up(IDLE, read_state) == {"clock": 1}
    assert clock.call_s == 0.5
    read.unlink()
    assert clock.batch(IDLE, "warm", 1, read_state) == [1.0]


@pytest.mark.parametrize("strategy", ["naive", "flat", "overlapped", "bucketed", "torch"])
def test_every_strategy_is_right_and_gets_a_time(worker, strategy):
    found = worker.answer(request(case(strategy=strategy)))
    assert found["status"] == "ok", found
    assert found["error"] < 1e-5
    assert found["facts"]["optimizer_bytes"] == 2 * found["facts"]["parameter_bytes"]
    calls = {"naive": 21, "flat": 1, "overlapped": 21, "bucketed": 5}
    if strategy in calls:
        assert found["facts"]["calls"] == calls[strategy]
        assert found["facts"]["bytes"] == found["facts"]["parameter_bytes"]
    assert len(found["samples_ns"]) == 1


@pytest.mark.parametrize("sharding", ["none", "sharded", "sharded_reducing", "torch"])
def test_every_sharding_takes_adamws_step(worker, sharding):
    params = {name: STEP[name] for name in ("size", "context_length", "batch", "precision", "variant", "world_size")}
    one = Case("smoke.X", "sharded_optimizer", {"sharding": sharding} | params, "cpu", "ranks", "warm")
    found = worker.answer(request(one))
    assert found["status"] == "ok", found
    facts = found["facts"]
    whole = 2 * facts["parameter_bytes"]
    assert facts["optimizer_bytes"] == pytest.approx(whole if sharding == "none" else whole / 2, rel=0.2)
    sent = {"sharded": 1, "sharded_reducing": 2}
    if sharding in sent:
        assert facts["communicated_bytes"] == sent[sharding] * facts["parameter_bytes"]


def test_processes_take_the_next_case_and_are_replaced_for_another_number_and_after_a_death(worker):
    assert worker.answer(request(case()))["status"] == "ok"
    before = worker._pool.ranks
    later = worker.answer(request(case(mode="exposed"), first=False))
    assert later["status"] == "ok"
    assert len(later["samples_ns"]) == 3
    assert worker._pool.ranks is before
    found = worker.answer(request(all_reduce(1)))
    assert found["status"] == "ok", found
    assert found["facts"] == {"bytes": 1_000_000}
    assert worker._pool.ranks is not before
    assert not before.alive

    worker._pool.ranks._processes[0].kill()
    found = worker.answer(request(all_reduce(1)))
    assert found["status"] == "error"
    assert "rank 0: " in found["reason"] and "SIGKILL" in found["reason"]
    assert worker.answer(request(all_reduce(1)))["status"] == "ok"


# A fault is a line at the top of finish_gradient_synchronization, in a copy of the package that the ranks import.
FAULTS = {
    "absent": (
        "threading.Event().wait()",
        r"rank 0: RuntimeError: .*lm_head.*Timed out"
        r"|rank 0: its process died \(SIGABRT\): Watchdog .*ALLREDUCE",  # NCCL's
    ),
    "another gradient": ("print('a library may'); self._trained[0].grad.mul_(2)", r"rank \d: .*averaged gradient"),
}


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Ranks that import a package with a fault in it, and give up on a collective in which one is absent."""
    shutil.copytree(ROOT / "cs336_systems", tmp_path / "cs336_systems", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(fault, device):
        if fault == "absent":
            monkeypatch.setattr(ranks, "LIMIT_S", 5.0)  # long enough for a loaded machine to start two ranks
        path = tmp_path / "cs336_systems" / "distributed" / "ddp.py"
        head = "def finish_gradient_synchronization(self) -> None:"
        broken = f"if dist.get_rank() == 1: {FAULTS[fault][0]}"
        source = path.read_text().replace(head, f"{head}\n        {broken}", 1)
        assert source.count(broken) == 1
        path.write_text(source.replace("import contextlib", "import contextlib, os, threading"))
        return Ranks(device, 2, tmp_path)

    return make


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fault", ["absent", pytest.param("another gradient", marks=pytest.mark.slow)])
def test_a_fault_of_one_rank_is_a_reason_and_leaves_nothing_behind(fault, device, faulty):
    made = faulty(fault, device)
    processes = list(made._processes)
    with pytest.raises((RuntimeError, WrongResult), match=FAULTS[fault][1]):
        made.build(case(device, strategy="naive")).check()
    assert not made.alive
    assert not any(process.is_running() for process in processes)
    assert not made._folder.exists()


def test_ranks_die_with_their_worker():
    """A worker that asv kills closes nothing, and a stopped rank does not notice the end of its input."""
    worker, children = WorkerProcess("cpu", ROOT), []
    worker.start()
    try:
        assert worker.ask(request(all_reduce(1)), limit_s=250)["status"] == "ok"
        parent = worker._process.pid
        children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        (rank,) = children
        os.kill(rank, signal.SIGSTOP)
        worker._process.kill()
        wait_for_the_end_of(rank)
    finally:
        worker.stop()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_ranks_measure_the_checkout_alone(tmp_path):
    made = Ranks("cpu", 1, tmp_path)
    with pytest.raises(Unavailable, match="no package"):
        made.build(case())


def wait_for_the_end_of(pid):
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


@pytest.mark.skipif(torch.cuda.device_count() >= 6, reason="this machine has six GPUs")
def test_a_world_size_that_the_machine_lacks_is_not_applicable():
    with pytest.raises(Unavailable, match="6 GPUs"):
        Ranks("cuda", 6, ROOT)
