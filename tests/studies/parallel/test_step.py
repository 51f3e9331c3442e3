"""Two ways to share a step's work on the same ranks: in turn, in fresh processes, and what that says."""

import pytest
import torch

from perf.harness.status import describe
from perf.studies.parallel import step
from perf.studies.parallel.step import arm_of
from perf.studies.speedups import Effort
from perf.workloads.workload import Floor, Workload
from tests.studies.running import invoke, run_study

TINY = ["--world-size", "2", "--size", "tiny", "--context", "16", "--batch", "2", "--rounds", "2"]
A, B, C = (("data_parallel", {"strategy": name}) for name in ("bucketed", "torch", "broken"))
PAIRS = {("a", "b"): (A, B), ("c", "b"): (C, B)}


def row(ours_s, against_s, **more):
    axes = {"size": "xl", "context_length": 512, "batch": 4, "world_size": 2, "precision": "bf16", "variant": "eager"}
    samples = {"ours_s": ours_s, "against_s": against_s, "ours_busy": [], "against_busy": []}
    return axes | {"ours": "a", "against": "b", "status": "ok"} | samples | more


class FakeRanks:
    """Ranks that log their calls; the arm built first takes 1 s on rank 0 and 3 s on rank 1, the other 2 s."""

    log: list[str]

    def __init__(self, device, world_size, checkout):
        self.world_size, self.alive = world_size, True
        self.log.append(f"start {world_size}")

    def build(self, case, arm):
        name = case.params["strategy"]
        self.log.append(f"{name}, batch {case.params['batch']}")
        if name == "broken":
            self.alive = False
            raise RuntimeError("rank 0: broken\nmore")
        return Workload(run=lambda: None, check=lambda: self.log.append(f"check {name}") or 0.0, floor=Floor())

    def ask(self, do, arm, **arguments):
        if do == "take":
            return [{"samples_s": [float(time)], "without_s": []} for time in ((1, 3), (2, 2))[arm]]
        return [{"call_s": 1.0}] * 2

    def spans(self):
        return [{"compute": [[0.0, 2.0]], "communication": [[1.0, end]]} for end in (3.0, 2.7)]

    def close(self):
        self.alive = False
        self.log.append("close")


@pytest.fixture
def ranks_log(monkeypatch):
    monkeypatch.setattr(FakeRanks, "log", [], raising=False)
    monkeypatch.setattr("perf.harness.ranks.Ranks", FakeRanks)
    return FakeRanks.log


def measured(rows, device="cpu", processes=4, half_width=0.02):
    """Return the number of sets of processes."""
    return len(list(step.measured(rows, PAIRS, device, Effort(2, processes, half_width))))


def test_arms_change_places_with_the_processes_and_the_slowest_rank_counts(ranks_log):
    compared = row([], [])
    assert measured([compared], processes=2, half_width=0) == 2
    ours, other = "bucketed, batch 4", "torch, batch 4"
    checked = [ours, "check bucketed", other, "check torch"]
    assert ranks_log == ["start 2", *checked, "close", "start 2", other, ours, "close"]
    assert compared["ours_s"] == [[3.0, 3.0], [2.0, 2.0]], "the second time it is the second arm"
    assert compared["against_s"] == [[2.0, 2.0], [3.0, 3.0]]


def test_each_arm_s_gpu_is_looked_at_when_it_is_first(ranks_log):
    compared = row([], [])
    measured([compared], device="cuda", processes=2, half_width=0)
    assert compared["ours_busy"] == compared["against_busy"] == [pytest.approx(2.7 / 3)], "of the least busy rank"


def test_it_ends_after_as_many_processes_as_the_first_ones_want(ranks_log):
    assert measured([row([], [])], processes=9, half_width=1e9) == 3
    assert measured([row([], [])], processes=5, half_width=0) == 5
    assert measured([row([], [], ours="c")], processes=9, half_width=0) == 3, "nothing to compare"


def test_what_fails_is_a_row_and_the_others_go_on_with_new_ranks(ranks_log):
    rows = [row([], [], ours="c"), row([], [])]
    measured(rows, processes=2, half_width=0)
    assert [describe(row) for row in rows] == ["error: RuntimeError: rank 0: broken", "ok"]
    assert len(rows[1]["ours_s"]) == 2
    assert ranks_log[:5] == ["start 2", "broken, batch 4", "start 2", "bucketed, batch 4", "check bucketed"]
    assert any("rank 0: broken" in cells["ours, ms"] for cells in step.shown(rows))


def test_a_throttled_process_costs_itself_alone(ranks_log, monkeypatch):
    take_turns = step.bench().take_turns
    replies = iter(("throttled", "ok", "throttled", "ok", "ok"))

    def throttled(*arguments, **options):
        found = take_turns(*arguments, **options)
        status = next(replies)
        return found if status == "ok" else {name: {"status": status, "reason": "too hot"} for name in found}

    monkeypatch.setattr(type(step.bench()), "take_turns", lambda self, *some, **more: throttled(*some, **more))
    compared = row([], [])
    assert measured([compared], processes=5, half_width=0) == 5
    assert (compared["status"], len(compared["ours_s"]), "reason" in compared) == ("ok", 3, False)
    checked = [line.removeprefix("check ") for line in ranks_log if line.startswith("check")]
    assert checked == ["bucketed", "torch", "torch", "bucketed"], "until a process has samples"


def test_where_nothing_was_compared_earlier_rows_stay(ranks_log, tmp_path, monkeypatch):
    earlier = tmp_path / "parallel-step.json"
    earlier.write_text("earlier")
    monkeypatch.setattr(FakeRanks, "build", lambda *arguments, **options: 1 / 0)
    done = invoke("parallel-step", *TINY, "--out", str(tmp_path))
    assert done.exit_code == 1 and "division by zero" in done.output.splitlines()[-1]
    assert earlier.read_text() == "earlier"


def test_a_group_is_whole_whatever_stands_between_its_rows():
    first, last = (row([[1.0]] * 3, [[time]] * 3, against=name) for name, time in (("first", 1.2), ("last", 1.1)))
    alone = row([[2.0, 2.2]] * 3, [[1.0, 1.1]] * 3, against=step.ALONE)
    best, communication = step.answers([first, alone, last], 0.02)
    assert best.endswith("last.") and "communication adds 100.0 %" in communication


def test_the_answers_are_against_the_best_and_against_itself_alone():
    slow, fast = (row([[1.0]] * 3, [[time]] * 3, against=name) for name, time in (("slow", 4.0), ("fast", 2.0)))
    alone = row([[1.03]] * 3, [[1.0]] * 3, against=step.ALONE)
    best, communication = step.answers([slow, fast, alone], 0.02)
    assert "2.000\u00d7" in best and best.endswith("fast.")
    assert "communication adds 3.0 %" in communication
    (host_bound,) = step.answers([row([[1.0]] * 3, [[2.0]] * 3, ours_busy=[0.8, 0.7])], 0.02)
    assert "75.0%" in host_bound
    (unsure,) = step.answers([row([[1.0], [1.5], [0.8]], [[2.0]] * 3)], 0.02)
    assert "too wide" in unsure


def test_an_optimizer_has_no_step_alone():
    done = invoke("parallel-step", *TINY, "--ours", "sharding/torch", "--against", "alone")
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)


@pytest.mark.parametrize("name", ["bucketed", "ddp/none", "ddp/bucketed/x", "ddp/bucketed/0", "sharding/sharded/3"])
def test_an_arm_that_cannot_be_is_one_line(name):
    done = invoke("parallel-step", *TINY, "--ours", name)
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: --ours '{name}' was given; allowed: ddp/")
    assert len(done.output.splitlines()) == 1


def test_arms_are_cases_of_the_suite():
    assert arm_of("ddp/torch") == ("data_parallel", {"strategy": "torch", "bucket_size_mb": 25.0, "mode": "step"})
    assert arm_of("ddp/bucketed/0.5")[1]["bucket_size_mb"] == 0.5
    assert arm_of("sharding/sharded") == ("sharded_optimizer", {"sharding": "sharded"})
    assert step.alone("ddp/torch")[1] == {"strategy": "torch", "bucket_size_mb": 25.0, "mode": "alone"}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="its defaults are a GPU's here")
def test_a_pair_of_each_kind_on_real_ranks(tmp_path):
    others = ("ddp/torch_static/0.1", "sharding/torch", "alone")
    arms = ["--ours", "ddp/bucketed/0.1", *(word for other in others for word in ("--against", other))]
    rows, _ = run_study(tmp_path, "parallel-step", *TINY, *arms, "--processes", "2")
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert [[len(samples) for samples in row["against_s"]] for row in rows] == [[2, 2]] * 3
    assert (tmp_path / "parallel-step.png").stat().st_size > 0
