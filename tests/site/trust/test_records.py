"""Self-tests on file are read as the gate writes them; anything else is named and skipped."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perf.gate import report as reports
from perf.gate.self_test_case import PLANTED
from perf.site.trust import records
from tests.gate.reports import memory, report, verdict
from tests.site.trust import made_up as self_tests


def test_what_the_gate_writes_is_read(tmp_path: Path) -> None:
    late, early = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    for number, when in enumerate((late, early)):
        self_tests.write(tmp_path, "box", f"{number}", self_tests.document(rows=4, started_at=when))
    tests, skipped = records.read(tmp_path, "box")
    assert not skipped
    assert [test.started_at for test in tests] == [early, late]
    assert [part.injection for part in tests[0].parts] == [None, *(part.injection for part in PLANTED)]
    assert len(tests[0].parts[0].verdicts) == 4
    assert all(len(changes) == 18 for changes in tests[0].parts[0].visits.values())


def test_a_gate_of_a_commit_against_itself_counts_as_identical_code(tmp_path: Path) -> None:
    other = report(verdict("SLOWER"), memory("LARGER", 1, 2))
    itself = replace(other, base=other.head)
    folder = tmp_path / "box" / "gate"
    folder.mkdir(parents=True)
    for day, one in enumerate((itself, other), start=1):
        (folder / f"2026010{day}T000000Z.json").write_text(reports.to_json(one))
    (test,), skipped = records.read(tmp_path, "box")
    assert not skipped
    assert (test.commit, test.started_at.day) == (other.head["commit"], 1)
    (identical,) = test.parts
    assert identical.injection is None
    assert [one.word for one in identical.verdicts] == ["SLOWER"], "times alone, as of a self-test"


def test_a_machine_without_a_folder_has_nothing(tmp_path: Path) -> None:
    assert records.read(tmp_path, "box") == ([], [])


def broken(**changes: Any) -> str:
    return json.dumps(self_tests.document(rows=1) | changes)


def in_first_part(**changes: Any) -> str:
    found = self_tests.document(rows=1)
    found["parts"][0] |= changes
    return json.dumps(found)


def in_first_verdict(**changes: Any) -> str:
    found = self_tests.document(rows=1)
    found["parts"][0]["verdicts"][0] |= changes
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (broken()[:500], "is no JSON, or cut off"),
        ("", "is no JSON, or cut off"),
        ("[" * 100_000, "is no JSON, or cut off"),
        ("1" * 5000, "is no JSON, or cut off"),
        ("[1]", "is no JSON, or cut off: a list; allowed: an object"),
        (broken(version=2), "is of version 2; allowed: 1"),
        (broken(version="<b>"), "is of version '<b>'"),
        (broken(started_at="yesterday"), "is not of the form of version 1"),
        (broken(started_at="0001-01-01T00:00:00+14:00"), "is not of the form of version 1"),
        (broken(started_at=5), "started_at is 5; allowed: str"),
        (broken(commit=None), "commit is None; allowed: str"),
        (broken(device=3), "is not of the form of version 1"),
        (broken(parts=None), "is not of the form of version 1"),
        (broken(parts="parts"), "is not of the form of version 1"),
        (json.dumps({"version": 1}), "started_at is None"),
        (
            in_first_part(injection={"kind": "gravity", "size": 0.1}),
            "kind is 'gravity'; allowed: ",
        ),
        (in_first_part(injection={"kind": "host", "size": float("nan")}), "size is nan; allowed: finite float"),
        (in_first_part(visits={"a": [[0]]}), "is not of the form of version 1"),
        (in_first_part(visits={"a": [[0, "1"]]}), "visits is '1'; allowed: finite float"),
        (in_first_part(visits=[]), "is not of the form of version 1"),
        (in_first_verdict(word="FINE"), "word is 'FINE'; allowed: .*SLOWER', "),
        (in_first_verdict(word=[]), r"word is \[\]; allowed: .*SLOWER', "),
        (in_first_verdict(base=True), "base is True; allowed: finite float"),
        (in_first_verdict(base=10**400), "is not of the form of version 1"),
        (in_first_verdict(smallest_visible=-1), "is -1; allowed: finite positive float"),
        (in_first_verdict(smallest_visible=float("inf")), "is inf; allowed: finite positive float"),
        (in_first_verdict(reason="x" * 10**6, key=1), "key is 1; allowed: str"),
    ],
)
def test_what_is_no_self_test_is_named_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    self_tests.write(tmp_path, "box", "good", self_tests.document(rows=1))
    self_tests.write(tmp_path, "box", "bad", text)
    tests, skipped = records.read(tmp_path, "box")
    assert len(tests) == 1
    [(name, said)] = skipped
    assert name == "bad.json"
    assert len(said) < 200
    assert re.search(why, said), said


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "box" / "self-test"
    (folder / "folder.json").mkdir(parents=True)
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00")
    (folder / "gone.json").symlink_to(folder / "nowhere")
    tests, skipped = records.read(tmp_path, "box")
    assert not tests
    assert [name for name, _ in skipped] == ["binary.json", "folder.json", "gone.json"]


def test_a_later_field_does_no_harm(tmp_path: Path) -> None:
    self_tests.write(tmp_path, "box", "later", broken(host="a"))
    self_tests.write(tmp_path, "box", "verdict", in_first_verdict(accepted="because"))
    assert not records.read(tmp_path, "box")[1]
