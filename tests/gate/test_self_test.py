"""The gate's own proof, run in small, and what its table says."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from perf.gate import report, self_test
from perf.gate.evidence import Arm, Evidence
from perf.gate.judge import judge
from perf.gate.rate import Rate
from perf.gate.self_test import SelfTestResult, table
from perf.gate.self_test_case import PLANTED, SelfTestCase
from perf.gate.verdicts import Judgement
from perf.harness.case import Case, ClockName
from tests.gate.made_evidence import evidence, rows
from tests.gate.reports import KEY, memory, verdict
from tests.throwaway import Repository

CELL = (8192, 64, "bfloat16", "forward", "triton")
ROW = Evidence(
    Case("attention.FlashAttention", "attention", dict(zip("abcde", CELL, strict=True)), "cuda", "cuda_events", "cold"),
    (0.01, 0.0),
    False,
)


def test_the_table_counts_what_each_part_is_about() -> None:
    assert ROW.case.key == KEY
    rows = (verdict("SLOWER"), verdict("SAME"), memory("LARGER", 1, 2), memory("SAME", 1, 1))
    ended = [SelfTestResult(part, Judgement(rows, ""), [ROW], 60.0, 12) for part in (SelfTestCase(None), *PLANTED)]
    lines = {cells[0]: cells[1:] for cells in (re.split(r"  +", line) for line in table(ended).splitlines())}
    assert lines["identical code"][:2] == ["2", "1"]
    assert "50.0 %, at most 97.5 %" in lines["identical code"]
    assert "50.0 %, at least 2.5 %" in lines["2 % on the device"]
    unmeasured = Judgement((*rows, verdict("AMBIGUOUS", min_detectable=None)), "")
    rates = [SelfTestResult(part, unmeasured, [ROW], 60.0, 12).rate for part in (SelfTestCase(None), PLANTED[0])]
    assert rates == [Rate(1, 2), Rate(1, 3)], "what cannot be wrong is no proof, and what was not measured not found"
    assert lines["1 MiB of memory"][:3] == ["2", "0", "1"]


@pytest.mark.parametrize(
    ("kind", "clocks"),
    [
        ("device", {"cuda_events", "cuda_graph", "device_busy", "gpu_wall", "ranks", "wall"}),
        ("host", {"gpu_wall", "host", "ranks", "wall"}),
        ("memory", set(get_args(ClockName))),
    ],
)
def test_a_part_asks_the_rows_whose_clock_sees_what_is_planted(kind: str, clocks: set[str]) -> None:
    assert {clock for clock in get_args(ClockName) if SelfTestCase.planting(kind, 0.05).shows_on(clock)} == clocks


def test_parts_are_kept_as_they_end_and_one_that_no_row_shows_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RECORDS", tmp_path)
    kept = []

    def measured(arms: Any, places: Any, evidence: list[Evidence], **settings: Any) -> Any:
        kept.append([len(json.loads(path.read_text())["parts"]) for path in tmp_path.glob("*/self-test/*.json")])
        return SimpleNamespace(greeting={}, processes=3)

    monkeypatch.setattr(self_test, "measure", measured)
    self_test.prove(Arm("a" * 40, ""), (tmp_path, tmp_path), lambda: [replace(ROW)], PLANTED, budget_s=1.0)
    assert kept == [[], [1], [2], [3], [4], [5]], "one file, a part more after each"


def test_two_that_end_in_the_same_second_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RECORDS", tmp_path)
    end_of_year = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)
    for number in range(3):
        path = report.place("gate", end_of_year)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    names = sorted(path.name for path in path.parent.iterdir())
    assert names == ["20261231T235959Z.json", "20270101T000000Z.json", "20270101T000001Z.json"]


def test_a_row_is_judged_as_the_only_one_that_was_slowed() -> None:
    """Three rows of 1.1 %, each noisy enough to need the help of the other two."""
    identical = rows(10)
    planted = [evidence(f"row {i}", 0.03, sd=0.03, effect=0.014, seed=i) for i in range(10)]
    together = [verdict.word for verdict in judge(planted).verdicts if verdict.quantity == "time"]
    one_at_a_time = self_test.OneAtATime(identical)
    apart = [verdict.word for verdict in one_at_a_time.judge(planted).verdicts if verdict.quantity == "time"]
    alone = [
        next(
            verdict.word
            for verdict in judge([row, *(other for other in identical if other.case.key != row.case.key)]).verdicts
            if verdict.key == row.case.key and verdict.quantity == "time"
        )
        for row in planted
    ]
    assert apart == alone
    assert apart.count("SLOWER") < together.count("SLOWER")


def test_rows_that_are_open_in_their_own_report_are_measured_on() -> None:
    identical = rows(10)
    planted = [*rows(9), evidence("row 9", 0.05, processes=3), evidence("control", is_control=True)]
    still_open = self_test.OneAtATime(identical).open_rows(planted)
    assert still_open == planted[9:]
    assert not self_test.OneAtATime(identical).open_rows([*rows(10), planted[-1]])


@pytest.mark.slow
def test_the_proof_is_kept_beside_the_records(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo")
    repository.write_package(axis="[1]")
    head = repository.commit("head")
    pattern = r"SmokeAttention.*\(128.*'forward', 'reference'"
    done = repository.python("-m", "perf", "self-test", "-b", pattern, "--plant", "30")
    assert done.returncode == 0, done.stderr
    (path,) = (repository.folder / "perf" / "records").glob("*/self-test/*.json")
    assert str(path) in done.stdout
    document = json.loads(path.read_text())
    assert document["commit"] == head
    assert [part["name"] for part in document["parts"]] == [
        part.title for part in (SelfTestCase(None), *self_test.planting([0.3]))
    ]
    for part in document["parts"]:
        assert len(part["verdicts"]) == 1
        assert all(len(visits) >= 2 for visits in part["visits"].values())
