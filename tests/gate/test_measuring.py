"""Evidence from real processes: which rows go on, whose fault a fault was, and that the budget ends it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.gate.evidence import Evidence
from perf.gate.judge import judge
from perf.gate.measuring import Measuring
from perf.harness.case import Case
from perf.harness.worker_process import WorkerProcess
from tests.harness.test_pair import ATTENTION, CASE, GOOD, of_length
from tests.throwaway import write_attention

CONTROL = Case("smoke.SmokeControls", "controls", {"control": "copy"}, "cpu", "wall", "warm")


@pytest.fixture
def places(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    def make(base: tuple[str, str] | None, head: tuple[str, str] | None) -> tuple[Path, Path]:
        for name, code in (("base", base), ("head", head)):
            modules = {"reference": ATTENTION.format(before=code[0], after=code[1])} if code else {}
            write_attention(tmp_path / name, **modules)
        return tmp_path / "base", tmp_path / "head"

    return make


def measured(places: tuple[Path, Path], *more: Evidence, **changes: Any) -> tuple[Any, ...]:
    """The run over one row of the package's, one control and `more` rows, and these."""
    rows = [Evidence(CASE, (0.1, 1e-4), False), Evidence(CONTROL, (0.1, 1e-4), True), *more]
    settings: dict[str, Any] = {"budget_s": 1e9, "looks": (2,), "is_open": lambda rows: [], "visits": 2}
    run = Measuring(rows, places, **settings | changes)
    run.until_settled()
    return run, *rows


def statuses(evidence: Evidence) -> tuple[str, str]:
    return evidence.outcomes["base"].status, evidence.outcomes["head"].status


def test_every_row_has_its_visits_in_every_process_and_a_broken_one_costs_the_others_nothing(places: Any) -> None:
    broken = Evidence(of_length(65), (0.1, 1e-4), False)
    head = ("if q.shape[-2] == 65: raise RuntimeError('no luck')", "")
    run, row, control, _ = measured(places(GOOD, head), broken)
    for evidence in (row, control):
        assert statuses(evidence) == ("ok", "ok")
        assert [(visit.process, visit.visit) for visit in evidence.visits] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert all(len(visit.base_s) == len(visit.head_s) >= 2 for visit in evidence.visits)
        assert evidence.is_timed
        assert not evidence.trouble
    assert run.processes == 2
    assert run.greeting["software"]["torch"]
    assert {"build", "check", "warm_up", "sample"} <= {what for what, seconds in run.spent_s.items() if seconds > 0}
    assert statuses(broken) == ("ok", "error")
    assert broken.outcomes["head"].reason == "RuntimeError: no luck"
    assert not broken.visits


@pytest.mark.slow
def test_only_open_rows_go_on(places: Any) -> None:
    asked = []

    def is_open(rows: list[Evidence]) -> list[Evidence]:
        asked.append(len(rows[0].visits))
        return [rows[0]]

    run, row, control = measured(places(GOOD, GOOD), looks=(1, 2, 3), is_open=is_open, visits=1)
    assert asked == [1, 2, 3]
    assert (len(row.visits), len(control.visits)) == (3, 1)
    assert run.processes == 3


@pytest.mark.slow
def test_where_nothing_but_controls_is_left_to_time_there_is_no_second_process(places: Any) -> None:
    _, row, control = measured(places(GOOD, ("raise RuntimeError('no luck')", "")))
    assert statuses(row) == ("ok", "error")
    assert len(control.visits) == 2


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["base", "head"])
def test_a_crash_is_the_fault_of_the_arm_that_crashes_alone(places: Any, bad: str) -> None:
    killed = ("import os; os.kill(os.getpid(), 9)", "")
    _, row, control = measured(places(*((killed, GOOD) if bad == "base" else (GOOD, killed))))
    assert row.outcomes[bad].status == "crashed"  # type: ignore[index]
    assert "SIGKILL" in row.outcomes[bad].reason  # type: ignore[index]
    assert {"crashed", "ok"} == set(statuses(row))
    assert len(control.visits) == 2


@pytest.mark.slow
def test_a_hang_is_killed_and_its_fault_found(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = WorkerProcess.ask

    def ask_patiently(process: WorkerProcess, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        may_hang = request["case"]["workload"] == "attention" and "head" in request["arms"]
        return ask(process, request, limit_s if may_hang else 250.0)

    monkeypatch.setattr(WorkerProcess, "ask", ask_patiently)
    hangs = ("import threading; threading.Event().wait()", "")
    _, row, control = measured(places(GOOD, hangs), limit_s=5.0, looks=(1,), visits=1)
    assert statuses(row) == ("ok", "hung")
    assert len(control.visits) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "status"), [("raise ValueError('late')", "error"), ("import os; os._exit(3)", "crashed")]
)
def test_an_arm_that_fails_only_when_it_is_timed_has_failed(places: Any, failure: str, status: str) -> None:
    """As after a cache of what the first call prepared: the check passes."""
    counts = "import time; time.calls = getattr(time, 'calls', 0) + 1"
    later = (f"{counts}\n    if time.calls > 2: {failure}", "")
    _, row, control = measured(places(GOOD, later))
    assert statuses(row) == ("ok", status)
    assert ("late" if status == "error" else "exit status 3") in row.outcomes["head"].reason
    assert [verdict.word for verdict in judge([row, control]).verdicts] == ["BROKEN"]


def test_the_budget_ends_it_and_keeps_what_there_is(places: Any) -> None:
    run, row, _ = measured(places(GOOD, GOOD), budget_s=0.0)
    assert run.processes == 0
    assert not row.outcomes


def test_a_budget_for_some_of_the_open_rows_confirms_the_first_of_them(places: Any) -> None:
    rows = [Evidence(replace(CASE, params=CASE.params | {"seq_len": n}), (0.1, 1e-4), False) for n in (1, 2, 3)]
    control = Evidence(CONTROL, (0.1, 1e-4), True)
    run = Measuring([*rows, control], places(GOOD, GOOD), budget_s=1000.0, looks=(3, 12), is_open=list)
    run.processes, run._start_s = 3, 10.0
    run._row_s.update({row.case.key: 40.0 for row in rows} | {control.case.key: 10.0})
    assert run._affordable([rows[2], rows[0], rows[1], control]) == [rows[2], rows[0], control]
    run._row_s[rows[2].case.key] = 1000.0
    assert run._affordable([rows[2], rows[0], control]) == [rows[2], control], "one at least"
    run.processes = 12
    assert run._affordable([*rows, control]) == [*rows, control]


def test_a_row_that_was_left_out_stays_out(places: Any) -> None:
    """Its seconds in the last process are not known, and it cannot have all processes any more."""
    rows = [Evidence(replace(CASE, params=CASE.params | {"seq_len": n}), (0.1, 1e-4), False) for n in (1, 2, 3)]
    run = Measuring(rows, places(GOOD, GOOD), budget_s=1000.0, looks=(3, 8, 12), is_open=list)
    run.processes, run._start_s = 8, 10.0
    run._row_s.update({rows[1].case.key: 40.0})
    assert run._affordable(rows) == [rows[1]]


def test_a_gpu_that_is_lost_later_costs_no_row_what_it_has(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    greet = Measuring._greet
    monkeypatch.setattr(Measuring, "_greet", lambda run, worker: "no GPU" if run.processes == 2 else greet(run, worker))
    _, row, _ = measured(places(GOOD, GOOD), visits=1)
    assert statuses(row) == ("ok", "ok")
    assert (len(row.visits), row.trouble) == (1, "no GPU")


def test_a_crash_of_both_arms_later_costs_no_row_what_it_has(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether each arm crashes again by itself or not."""
    run, row, _ = measured(places(GOOD, GOOD), looks=(1,), visits=1)
    monkeypatch.setattr(run, "_greet", lambda worker: "")
    for again in ("crashed", "ok"):
        monkeypatch.setattr(run, "_ask", lambda *_, again=again: {"status": again, "reason": "SIGKILL"})
        row.trouble = "both commits side by side: SIGKILL"
        run._ask_apart(next(iter(run._workers.values())), row)
        assert statuses(row) == ("ok", "ok")
        assert "SIGKILL" in row.trouble


def test_no_visit_begins_that_would_end_after_the_budget(places: Any) -> None:
    run = Measuring([Evidence(CASE, (0.1, 1e-4), False)], places(GOOD, GOOD), budget_s=60.0, looks=(2,), is_open=list)
    run._visit_s[CASE.key] = 61.0
    run.until_settled()
    assert not run.evidence[0].outcomes
    assert not run.greeting


@pytest.mark.slow
def test_what_neither_commit_has_is_n_a_in_both(places: Any) -> None:
    _, row, _ = measured(places(None, None))
    assert statuses(row) == ("unavailable", "unavailable")
