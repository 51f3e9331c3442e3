"""A case that is wrong, crashes, hangs or is missing costs itself a reason and the others nothing.

Real worker processes measure a throw-away `cs336_systems` that misbehaves on purpose.
"""

import dataclasses
import textwrap

import pytest

from perf.harness import records, supervisor
from perf.harness.case import Case
from perf.harness.journal import Journal
from perf.harness.measure import package_digest
from perf.harness.supervisor import Effort, measure
from perf.harness.worker_process import WorkerProcess
from tests.throwaway import write_attention

COMMIT = "a" * 40
STOP = {"min_samples": 5, "max_samples": 5, "max_seconds": 1e9}
FAST = Effort("full", rounds=2, processes=1, limit_s=250, stop=STOP)
TWICE = Effort("full", rounds=2, processes=2, limit_s=250, stop=STOP)

RIGHT = """
    from pathlib import Path

    import torch

    def scaled_dot_product_attention(q, k, v, is_causal):
        if Path(__file__).parents[2].joinpath("fails").exists():  # a file that a test makes
            raise ValueError
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
"""

# What a call does, by its sequence length.
FAULTS = """
    import os, threading, torch

    class FlashAttentionPyTorch:
        @staticmethod
        def apply(q, k, v, is_causal):
            fault = q.shape[-2] - 100
            if fault == 1:
                os.abort()
            if fault == 2:
                threading.Event().wait()
            if fault == 3:
                raise RuntimeError("first line\\nsecond line")
            if fault == 4:
                raise torch.OutOfMemoryError("99 GiB")
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=fault != 5 and is_causal)
            return out * float("nan") if fault == 6 else out
"""


def case(impl, seq_len=16):
    params = {"seq_len": seq_len, "d": 16, "dtype": "float32", "mode": "forward", "impl": impl}
    return Case("test.Attention", "attention", params, "cpu", "wall", "warm")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder with a `cs336_systems`, which worker processes import."""
    root = tmp_path_factory.mktemp("checkout")
    write_attention(root, reference=textwrap.dedent(RIGHT), flash_pytorch=textwrap.dedent(FAULTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root))
        yield root


class Lasting(WorkerProcess):
    """A process that goes on from run to run, for tests of what a run takes from file."""

    def start(self):
        if not self.alive():
            self.greeting = super().start()
        return self.greeting

    def stop(self):
        pass

    def end(self):
        super().stop()


@pytest.fixture(scope="module")
def lasting(checkout):
    process = Lasting("cpu", checkout)
    yield process
    process.end()


@pytest.fixture
def one_process(lasting, monkeypatch):
    monkeypatch.setattr(supervisor, "WorkerProcess", lambda device, checkout: lasting)


def run(cases, checkout, tmp_path, effort=FAST):
    results = measure(cases, commit=COMMIT, checkout=checkout, records=tmp_path / "records", effort=effort)
    assert [result.params for result in results] == [one.params for one in cases]
    return results


def lines(tmp_path):
    (machine,) = records.machines(tmp_path / "records")
    return records.read_lines(tmp_path / "records", machine, COMMIT)


def test_every_case_has_its_visits_on_file_in_order(checkout, tmp_path):
    untimed = dataclasses.replace(case("reference", seq_len=32), timed=False)
    first, second, memory = run([case("reference"), case("sdpa"), untimed], checkout, tmp_path, TWICE)
    assert (first.status, second.status) == ("ok", "ok")
    assert [len(visit) for visit in first.visits_s] == [5]
    assert first.clock == "wall"
    assert (memory.status, memory.samples_s) == ("ok", ()), "a case of which only the memory matters gets no time"
    written = lines(tmp_path)
    visits = [line for line in written if line["kind"] == "visit"]
    assert [line["order"] for line in visits] == [0, 1, 2, 3, 4]
    (of_memory,) = [line for line in visits if line["params"]["seq_len"] == 32]
    assert "samples_ns" not in of_memory and "check" in of_memory["spent_ms"]
    processes = [line for line in written if line["kind"] == "process"]
    assert [line["package_digest"] for line in processes] == [package_digest(checkout / "cs336_systems")] * 2
    assert all(line["ceilings"]["copy_bytes_per_s"] > 0 for line in processes)


@pytest.mark.usefixtures("one_process")
def test_what_is_on_file_is_not_measured_again(checkout, tmp_path, capsys):
    (first,) = run([case("reference")], checkout, tmp_path)
    assert "all on file" not in capsys.readouterr().out
    run([case("reference")], checkout, tmp_path)
    assert "all on file" in capsys.readouterr().out
    again, new = run([case("reference"), case("sdpa", seq_len=32)], checkout, tmp_path)
    assert "all on file" not in capsys.readouterr().out
    assert again.samples_s == first.samples_s
    assert new.status == "ok"
    assert len([line for line in lines(tmp_path) if line["kind"] == "session"]) == 1


@pytest.mark.usefixtures("one_process")
def test_after_a_quick_run_a_full_one_measures_anew_since_the_newest_session_is_shown(checkout, tmp_path):
    run([case("reference")], checkout, tmp_path)
    session, visit = (next(line for line in lines(tmp_path) if line["kind"] == kind) for kind in ("session", "visit"))
    (machine,) = records.machines(tmp_path / "records")
    journal = Journal(tmp_path / "records", machine, COMMIT)
    journal.write(session | {"id": "a quick run", "effort": "another"})
    journal.write(visit | {"session": "a quick run"})
    journal.close()
    (last,) = run([case("reference")], checkout, tmp_path)
    (shown,) = records.read_commit(tmp_path / "records", machine, COMMIT)
    assert (shown.session.effort, shown.samples_s) == (FAST.name, last.samples_s)


@pytest.mark.usefixtures("one_process")
def test_a_failure_is_tried_again(checkout, tmp_path):
    fails = checkout / "fails"
    fails.touch()
    try:
        (failed,) = run([case("reference")], checkout, tmp_path)
    finally:
        fails.unlink()
    (again,) = run([case("reference")], checkout, tmp_path)
    assert (failed.status, again.status) == ("error", "ok") and again.samples_s
    assert len([line for line in lines(tmp_path) if line["kind"] == "session"]) == 1


@pytest.mark.usefixtures("one_process")
def test_another_suite_takes_nothing_from_file(checkout, tmp_path, monkeypatch):
    run([case("reference")], checkout, tmp_path)
    monkeypatch.setattr(supervisor, "_suite", lambda: "after an edit of the workload")
    run([case("reference")], checkout, tmp_path)
    written = lines(tmp_path)
    assert [line["kind"] for line in written if line["kind"] in ("session", "visit")].count("session") == 2
    assert len({line["session"] for line in written if line["kind"] == "visit"}) == 2


HANGS = 102
EXPECTED = {
    101: ("crashed", "SIGABRT"),
    HANGS: ("hung", "1 s; the process was killed in wait (threading.py:"),
    103: ("error", "RuntimeError: first line"),
    104: ("out_of_memory", "99 GiB"),
    105: ("wrong", "out differs"),
    106: ("wrong", "nan"),
    16: ("ok", ""),
}


def test_a_bad_case_costs_itself_a_reason_and_the_others_nothing(checkout, tmp_path, monkeypatch):
    ask = WorkerProcess.ask

    def ask_patiently(process, request, limit_s):  # a busy machine may take longer than the limit for a good case
        return ask(process, request, limit_s if request["case"]["params"]["seq_len"] == HANGS else 250)

    monkeypatch.setattr(WorkerProcess, "ask", ask_patiently)
    absent = {"triton": ".flash_triton", "pytorch_compiled_backward": "FlashAttentionCompiledBackward"}
    cases = [*(case("pytorch", seq_len) for seq_len in EXPECTED), *map(case, absent), case("sdpa")]
    effort = dataclasses.replace(FAST, limit_s=1)
    *results, function, module, fine = run(cases, checkout, tmp_path, effort)
    for result, (status, reason) in zip(results, EXPECTED.values(), strict=True):
        assert result.status == status, result
        assert reason in result.reason and "\n" not in result.reason
        assert bool(result.samples_s) == (status == "ok")
    for result, name in zip((function, module), absent.values(), strict=True):
        assert result.status == "unavailable" and result.reason.endswith(name), "what a commit does not have"
    assert fine.status == "ok"


@pytest.mark.slow
def test_cases_of_as_many_ranks_come_one_after_the_other_in_every_round(checkout, tmp_path):
    """Another number of ranks takes new processes."""
    shapes = [{"world_size": ranks, "megabytes": size} for size in (1, 2) for ranks in (2, 1)]
    cases = [Case("test.AllReduce", "collectives", params, "cpu", "ranks", "warm") for params in shapes]
    results = measure(cases, commit=COMMIT, checkout=checkout, records=tmp_path / "records", effort=FAST)
    assert [result.status for result in results] == ["ok"] * 4
    visits = [line for line in lines(tmp_path) if line["kind"] == "visit"]
    assert [line["params"]["world_size"] for line in visits] == [1, 1, 2, 2] * 2
