"""What identical code on file says of a row, and that nothing else is taken for it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.gate import aa_runs
from perf.gate import report as reports
from perf.gate.verdicts import Report
from tests.gate.reports import KEY, report, verdict
from tests.site.trust import made_up as self_tests

MACHINE = "box"


def visits(change: float, *, sd: float = 0.0005, processes: int = 4, seed: int = 0) -> list[tuple[int, float]]:
    rng = np.random.default_rng(seed)
    return [(process, float(change + sd * rng.normal())) for process in range(processes) for _ in range(6)]


def kept(folder: Path, name: str, judged: Report) -> None:
    path = folder / MACHINE / "gate" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(reports.to_json(judged))


def of_identical(of: list[tuple[int, float]], **changes: Any) -> Report:
    judged = report(verdict("SAME"), visits={KEY: of}, **changes)
    return replace(judged, base=judged.head)


def test_a_margin_is_the_far_end_of_what_identical_code_moved_by(tmp_path: Path) -> None:
    kept(tmp_path, "20260101T000000Z", of_identical(visits(0.001, sd=0.01, processes=12)))
    (run,) = aa_runs.recorded(MACHINE, tmp_path)
    (margin,) = aa_runs.margins([run]).values()
    means = [np.mean(process) for process in run.processes(KEY)]
    furthest = abs(np.mean(means)) + 2.201 * np.std(means, ddof=1) / 12**0.5
    assert margin == pytest.approx(2 * furthest, rel=0.01)


def test_a_margin_is_never_below_the_least(tmp_path: Path) -> None:
    kept(tmp_path, "20260101T000000Z", of_identical(visits(0.0)))
    assert aa_runs.margins(aa_runs.recorded(MACHINE, tmp_path)) == {KEY: aa_runs.MIN_MARGIN}


def test_identical_code_that_moved_widens_the_margin(tmp_path: Path) -> None:
    kept(tmp_path, "20260101T000000Z", of_identical(visits(0.0)))
    kept(tmp_path, "20260102T000000Z", of_identical(visits(0.02)))
    runs = aa_runs.recorded(MACHINE, tmp_path)
    assert [run.when for run in runs] == ["20260101T000000Z", "20260102T000000Z"]
    assert aa_runs.margins(runs)[KEY] > 0.015


def test_two_processes_make_no_margin(tmp_path: Path) -> None:
    kept(tmp_path, "20260101T000000Z", of_identical(visits(0.0, processes=2)))
    assert aa_runs.margins(aa_runs.recorded(MACHINE, tmp_path)) == {}


def test_only_identical_code_whose_controls_held_counts(tmp_path: Path) -> None:
    kept(tmp_path, "20260101T000000Z", report(verdict("SAME"), visits={KEY: visits(0.0)}))
    kept(tmp_path, "20260102T000000Z", of_identical(visits(0.0), contaminated="the controls moved"))
    kept(tmp_path, "20260103T000000Z", of_identical(visits(0.0), head_software={"torch": "2.13.0"}))
    kept(tmp_path, "20260104T000000Z", of_identical([]))
    assert [run.visits[KEY] for run in aa_runs.recorded(MACHINE, tmp_path)] == [[]]
    assert aa_runs.margins(aa_runs.recorded(MACHINE, tmp_path)) == {}


def test_a_self_test_counts_by_its_identical_part(tmp_path: Path) -> None:
    self_tests.write(tmp_path, MACHINE, "20260101T000000Z", self_tests.document(rows=4))
    (run,) = aa_runs.recorded(MACHINE, tmp_path)
    assert len(run.visits) == len(run.words) == 4
    assert all(len(run.processes(key)) == 3 for key in run.visits)
    assert aa_runs.seconds_per_process([run]) == pytest.approx(60 / 12)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"parts": 3}', '{"base": {}, "head": {}}', "[" * 100_000])
def test_what_cannot_be_read_is_passed_by(tmp_path: Path, text: str) -> None:
    self_tests.write(tmp_path, MACHINE, "20260101T000000Z", text)
    kept(tmp_path, "20260102T000000Z", of_identical(visits(0.0)))
    assert [run.when for run in aa_runs.recorded(MACHINE, tmp_path)] == ["20260102T000000Z"]


def test_the_report_keeps_the_visits_that_its_words_were_drawn_from() -> None:
    document = json.loads(reports.to_json(of_identical(visits(0.0))))
    assert document["visits"][KEY] == [list(visit) for visit in visits(0.0)]
