"""The studies over several ranks run on a laptop; what they say follows from their rows."""

import json
from typing import ClassVar

import click
import pytest
import torch

from perf.harness.status import describe
from perf.studies import cases, clock
from perf.studies.device import ON_A_CPU
from perf.studies.parallel import all_reduce, ddp, ddp_equivalence, overlap, ranked, sharding
from tests.studies.running import invoke, run_study

ON_CPU = not torch.cuda.is_available()


@pytest.mark.slow
def test_all_reduce_gives_times_and_both_bandwidths(tmp_path):
    (row,), said = run_study(tmp_path, "all-reduce", "--device", "cpu", "--world-size", "2", "--megabytes", "1")
    assert row["facts"] == {"bytes": 1_000_000}
    assert "gloo" in said
    assert (tmp_path / "all-reduce.png").stat().st_size > 0


def test_bus_bandwidth_is_that_of_a_ring():
    row = {"facts": {"bytes": 10**9}, "samples_s": [9.0, 0.5, 0.4], "world_size": 4}
    assert all_reduce.rates(row) == (2e9, 3e9)


@pytest.mark.slow
@pytest.mark.skipif(not ON_CPU, reason="its defaults are a GPU's here")
def test_ddp_shows_every_strategy_and_the_fitted_model(tmp_path):
    rows, said = run_study(tmp_path, "ddp", "--context", "16")
    assert [row["strategy"] for row in rows] == [
        "naive",
        "flat",
        "overlapped",
        *["bucketed"] * 3,
        *["torch"] * 3,
        *["torch_static"] * 3,
    ]
    assert all(row["status"] == "ok" and row["step_s"] and row["exposed_s"] for row in rows)
    assert ON_A_CPU in said
    assert (tmp_path / "ddp.png").stat().st_size > 0


def bucketed(calls, exposed, num_bytes=8e9):
    facts = {"calls": calls, "bytes": num_bytes}
    return {"strategy": "bucketed", "status": "ok", "facts": facts, "exposed_s": [exposed]}


def test_the_model_is_recovered_from_what_follows_it():
    bandwidth, overhead = 200e9, 20e-6
    rows = [bucketed(calls, 8e9 / (calls * bandwidth) + calls * overhead) for calls in (8, 80, 320, 800)]
    assert ddp.fitted(rows) == pytest.approx((bandwidth, overhead), rel=1e-6)
    assert ddp.fitted(rows[:2]) is None


def test_the_answers_name_the_shortest_step_and_the_bucket_that_adds_least():
    where = {"size": "xl", "context_length": 512, "world_size": 2}
    exposed = {10: 5.0, 25: 3.0, 100: 4.0}  # in milliseconds; as many calls for less than for more would fit no model
    rows = [
        bucketed(calls, exposed[size] * 1e-3) | where | {"bucket_size_mb": size, "step_s": [0.1 + size * 1e-4]}
        for calls, size in ((800, 10), (320, 25), (80, 100))
    ]
    naive = where | {"strategy": "naive", "status": "ok", "step_s": [0.2, 0.05, 0.06]}
    first, second = ddp.answers([naive, *rows])
    assert "naive" in first
    assert "25 MiB by measurement" in second
    for milliseconds in ((0.5, 2.5, 10.0), (6.0, 1.0, 0.1), (0.0, 0.0, 0.0)):  # of a term that the sweep does not show
        sweep = [row | {"exposed_s": [one * 1e-3]} for row, one in zip(rows, milliseconds, strict=True)]
        _, fit = ddp.answers([naive, *sweep])
        assert not any(word in fit for word in ("inf", "nan", "best bucket is"))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="needs two GPUs, or none")
def test_ddp_equivalence_holds_and_fails_where_the_weights_differ_by_more_than_is_allowed(tmp_path, monkeypatch):
    allowed = ddp_equivalence.ALLOWED
    monkeypatch.setattr(ddp_equivalence, "ALLOWED", -1.0)
    done = invoke("ddp-equivalence", "--world-size", "2", "--steps", "2", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert "Error: the weights differ; " in done.output
    rows = json.loads((tmp_path / "ddp-equivalence.json").read_text())["rows"]
    assert [row["equal_on_ranks"] for row in rows] == [True] * 4
    assert all(row["difference"] <= allowed for row in rows)


def test_weights_are_compared_on_all_ranks_and_with_one_process():
    exact = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    off = exact | {"b": torch.tensor([4.5])}
    assert ddp_equivalence.compared([off, off], exact) == {"equal_on_ranks": True, "difference": 0.1}
    assert ddp_equivalence.compared([exact, exact, off], exact) == {"equal_on_ranks": False, "difference": 0.0}


def test_every_rank_begins_with_weights_of_its_own():
    weights = [ddp_equivalence.trained(rank, 2, None, 0, 1, "cpu", "tiny") for rank in range(2)]
    assert not torch.equal(weights[0]["lm_head.weight"], weights[1]["lm_head.weight"])


@pytest.mark.slow
@pytest.mark.skipif(not ON_CPU, reason="its defaults are a GPU's here")
def test_overlap_sees_both_kinds_of_work(tmp_path):
    rows, _ = run_study(tmp_path, "overlap", "--context", "16")
    assert [(row["strategy"], row["rank"]) for row in rows] == [
        ("naive", 0),
        ("naive", 1),
        ("overlapped", 0),
        ("overlapped", 1),
    ]
    for row in rows:
        assert overlap.length(row["compute"]) > 0
        assert overlap.length(row["communication"]) > 0
    assert (tmp_path / "overlap.png").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.skipif(not ON_CPU, reason="its defaults are a GPU's here")
def test_sharding_shows_what_each_rank_holds(tmp_path):
    found, _ = run_study(tmp_path, "sharding", "--context", "16")
    rows = {row["sharding"]: row for row in found}
    assert set(rows) == {"none", "sharded", "sharded_reducing", "torch"}
    parameters = rows["none"]["facts"]["parameter_bytes"]
    assert rows["sharded"]["facts"]["communicated_bytes"] == parameters
    assert rows["sharded_reducing"]["facts"]["communicated_bytes"] == 2 * parameters
    assert (tmp_path / "sharding.png").stat().st_size > 0


def test_one_gpu_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert ranked.world_sizes_of((), "cuda") == ()
    assert ranked.some_world_sizes((3,), "cuda") == (3,)
    with pytest.raises(click.ClickException, match="one GPU"):
        ranked.some_world_sizes((), "cuda")


def test_each_model_has_bars_of_its_own(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(sharding.figures, "save", lambda figure, *_: drawn.append(figure))
    facts = {"parameter_bytes": 4, "optimizer_bytes": 8}
    names = [(size, name) for size in ("small", "xl") for name in ("none", "sharded")]
    rows = [
        {"size": size, "context_length": 512, "world_size": 2, "status": "ok", "sharding": name, "facts": facts}
        for size, name in names
    ]
    sharding.draw(rows, tmp_path / "sharding.png", "Memory")
    (axes,) = drawn[0].axes
    assert len({bar.get_y() for bar in axes.patches}) == 4
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert all(size in label and name in label for (size, name), label in zip(names, labels, strict=True))


def test_a_sharded_step_and_state_are_told_beside_the_whole_ones():
    whole, divided = (
        {"size": "xl", "context_length": 512, "world_size": 2, "status": "ok", "sharding": sharding}
        | {"samples_s": [time], "facts": {"optimizer_bytes": num_bytes}}
        for sharding, time, num_bytes in (("none", 0.1, 16), ("sharded", 0.12, 8))
    )
    (sentence,) = sharding.answers([whole, divided])
    assert "0.833\u00d7" in sentence and "50.0%" in sentence


class Worker:
    """A measuring process that dies of 13 MB, and gives three samples, one of them throttled, of anything else."""

    log: ClassVar[list[str]] = []

    def __init__(self, device, checkout):
        pass

    def start(self):
        self.log.append("start")
        self.is_alive = True
        return {"ceilings": {}}

    def alive(self):
        return self.is_alive

    def stop(self):
        self.log.append("stop")

    def ask(self, request, limit_s):
        size = request["case"]["params"]["megabytes"]
        self.log.append(f"{'check' if request['first'] else 'sample'} {size}")
        if size == 13:
            self.is_alive = False
            return {"status": "crashed", "reason": "the process died"}
        if request["first"]:
            return {"status": "ok", "reason": "", "error": 0.25, "facts": {"bytes": 1.0}, "peak_bytes": 7}
        return {"status": "ok", "reason": "", "samples_ns": [10**9, 9 * 10**9, 2 * 10**9], "throttled": [1]}


def test_each_case_is_checked_weighed_and_sampled_and_a_death_costs_the_others_nothing(monkeypatch):
    monkeypatch.setattr(cases, "WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "log", [])
    settings = [{"world_size": 2, "megabytes": size} for size in (1, 13, 3)]
    first, died, last = cases.measured_rows("collectives", settings, "cpu")
    assert Worker.log == ["start", "check 1", "sample 1", "check 13", "stop", "start", "check 3", "sample 3", "stop"]
    assert first == {"device": "cpu", "world_size": 2, "megabytes": 1, "status": "ok", "error": 0.25} | {
        "samples_s": [1.0, 2.0],
        "facts": {"bytes": 1.0},
        "peak_bytes": 7,
    }
    assert describe(died) == "crashed: the process died" and "samples_s" not in died
    assert last["status"] == "ok"


def test_without_a_gpu_a_case_of_one_is_a_row(monkeypatch):
    monkeypatch.setattr(cases, "WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "start", lambda worker: {"unavailable": "needs a CUDA GPU"})
    monkeypatch.setattr(Worker, "alive", lambda worker: True)
    (row,) = cases.measured_rows("collectives", [{"world_size": 2, "megabytes": 1}], "cuda")
    assert describe(row) == "unavailable: needs a CUDA GPU"


def test_the_clock_study_visits_a_step_on_each_clock_in_processes_of_its_own(monkeypatch):
    def ask(worker, request, limit_s):
        worker.log.append((request["case"]["clock"], request["first"]))
        return {"status": "ok", "reason": "", "error": 0.0, "samples_ns": [10**6, 3 * 10**6, 4 * 10**6]}

    monkeypatch.setattr(cases, "WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "ask", ask)
    monkeypatch.setattr(Worker, "log", [])
    rows = list(clock._processes(2))
    visits = [(name, first) for name in ("device_busy", "gpu_wall", "cuda_graph") for first in (True, False)]
    assert Worker.log == ["start", *visits, "stop"] * 2
    assert [row["medians, ms"] for row in rows] == ["3.000  3.000"] * 3
    monkeypatch.setattr(Worker, "ask", lambda *_: {"status": "wrong", "reason": "by far"})
    with pytest.raises(click.ClickException, match="device_busy: wrong: by far"):
        list(clock._processes(2))


class LivingRanks:
    """Ranks that only live and end; `all` lists those that were started."""

    def __init__(self, device, world_size, checkout):
        self.world_size, self.alive = world_size, True
        self.all.append(self)

    def close(self):
        self.alive = False


def test_ranks_are_reused_while_they_live_and_are_as_many(monkeypatch):
    monkeypatch.setattr(LivingRanks, "all", started := [], raising=False)
    monkeypatch.setattr("perf.harness.ranks.Ranks", LivingRanks)
    with ranked.running_ranks("cpu") as ranks_of:
        first = ranks_of(2)
        assert ranks_of(2) is first
        first.alive = False
        assert ranks_of(2) is not first
        ranks_of(3)
    assert [ranks.world_size for ranks in started] == [2, 2, 3]
    assert not any(ranks.alive for ranks in started)


def test_the_modes_of_a_setting_make_a_row_which_fails_with_either():
    step = {"strategy": "naive", "mode": "step", "status": "ok", "samples_s": [1.0], "facts": {}}
    exposed = step | {"mode": "exposed", "samples_s": [0.2]}
    failed = {"strategy": "naive", "mode": "exposed", "status": "error", "reason": "rank 1: its process died (SIGKILL)"}
    row, failure = ddp.paired([step, exposed, step, failed])
    assert row == {"strategy": "naive", "status": "ok", "facts": {}, "step_s": [1.0], "exposed_s": [0.2]}
    assert describe(failure) == "error: rank 1: its process died (SIGKILL)"
