"""The studies over several ranks run on a laptop; what they say follows from their rows."""

import json

import pytest
from click.testing import CliRunner

from perf.__main__ import main
from perf.studies import all_reduce, ddp, ddp_equivalence, overlap, sharding
from perf.studies.lm import ON_A_CPU

ON_CPU = not __import__("torch").cuda.is_available()


def study(*arguments):
    return CliRunner().invoke(main, ["study", *arguments])


def test_all_reduce_gives_times_and_both_bandwidths(tmp_path):
    done = study("all-reduce", "--device", "cpu", "--world-size", "2", "--megabytes", "1", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "all-reduce.json").read_text())["rows"]
    assert row["facts"] == {"bytes": 1_000_000}
    assert "gloo" in done.output
    assert (tmp_path / "all-reduce.png").stat().st_size > 0


def test_bus_bandwidth_is_that_of_a_ring():
    row = {"facts": {"bytes": 10**9}, "samples_s": [0.5], "world_size": 4}
    assert all_reduce.bandwidths(row) == (2e9, 3e9)


@pytest.mark.skipif(not ON_CPU, reason="its defaults are a GPU's here")
def test_ddp_shows_every_strategy_and_the_fitted_model(tmp_path):
    done = study("ddp", "--context", "16", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "ddp.json").read_text())["rows"]
    assert [row["strategy"] for row in rows] == ["naive", "flat", "overlapped", *["bucketed"] * 3, *["torch"] * 3]
    assert all(row["status"] == "ok" and row["step_s"] and row["exposed_s"] for row in rows)
    assert "has the shortest step" in done.output
    assert "by the model the best bucket has" in done.output
    assert ON_A_CPU in done.output
    assert (tmp_path / "ddp.png").stat().st_size > 0


def bucketed(calls, exposed, num_bytes=8e9):
    facts = {"calls": calls, "bytes": num_bytes}
    return {"strategy": "bucketed", "status": "ok", "facts": facts, "exposed_s": [exposed]}


def test_the_model_is_recovered_from_what_follows_it():
    bandwidth, overhead = 200e9, 20e-6
    rows = [bucketed(calls, 8e9 / (calls * bandwidth) + calls * overhead) for calls in (8, 80, 320, 800)]
    assert ddp.fitted(rows) == pytest.approx((bandwidth, overhead), rel=1e-6)
    assert ddp.fitted(rows[:2]) is None


def test_a_failed_mode_is_a_failed_row():
    ok = {"strategy": "naive", "mode": "step", "status": "ok", "samples_s": [1.0], "facts": {}}
    failed = {"strategy": "naive", "mode": "exposed", "status": "rank 1: its process died (SIGKILL)"}
    (row,) = ddp.paired([ok, failed])
    assert row["status"] == "rank 1: its process died (SIGKILL)"


def test_ddp_equivalence_holds_and_says_so(tmp_path):
    done = study("ddp-equivalence", "--world-size", "2", "--steps", "2", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "ddp-equivalence.json").read_text())["rows"]
    assert [row["equal_on_ranks"] for row in rows] == [True] * 4


def test_ddp_equivalence_fails_where_the_weights_differ(monkeypatch):
    monkeypatch.setattr(ddp_equivalence, "compared", lambda found, exact: {"equal_on_ranks": True, "difference": 1e-3})
    done = study("ddp-equivalence", "--world-size", "2", "--steps", "1")
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith("Error: the weights differ; allowed: ")


@pytest.mark.skipif(not ON_CPU, reason="its defaults are a GPU's here")
def test_overlap_sees_both_kinds_of_work(tmp_path):
    done = study("overlap", "--context", "16", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "overlap.json").read_text())["rows"]
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


def test_what_two_lanes_have_in_common():
    assert overlap.common([[0.0, 2.0], [3.0, 5.0]], [[1.0, 4.0]]) == 2.0
    assert overlap.length([[0.0, 2.0], [3.0, 5.0]]) == 4.0


@pytest.mark.skipif(not ON_CPU, reason="its defaults are a GPU's here")
def test_sharding_shows_what_each_rank_holds(tmp_path):
    done = study("sharding", "--context", "16", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    rows = {row["sharding"]: row for row in json.loads((tmp_path / "sharding.json").read_text())["rows"]}
    assert set(rows) == {"none", "sharded", "sharded_reducing", "torch"}
    parameters = rows["none"]["facts"]["parameter_bytes"]
    assert rows["sharded"]["facts"]["communicated_bytes"] == parameters
    assert rows["sharded_reducing"]["facts"]["communicated_bytes"] == 2 * parameters
    assert "of the step of the whole state" in done.output
    assert (tmp_path / "sharding.png").stat().st_size > 0


def test_the_formula_of_the_states():
    row = {"size": "xl", "world_size": 2}
    gib = {name: sharding.states_bytes(row | {"sharding": name}) / 2**30 for name in sharding.SHARDINGS}
    assert gib["none"] == pytest.approx(29.776, abs=1e-3)
    assert gib["sharded"] == gib["torch"] == pytest.approx(22.33, abs=1e-2)
    assert gib["sharded_reducing"] == pytest.approx(18.61, abs=1e-2)


@pytest.mark.skipif(not ON_CPU, reason="this machine may have them")
def test_more_ranks_than_gpus_is_a_row():
    from perf.studies.ranked import measured_rows

    (row,) = measured_rows("collectives", [{"world_size": 2, "megabytes": 1}], "cuda")
    assert row["status"] == "needs 2 GPUs; this machine has 0"
