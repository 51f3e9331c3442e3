"""A regression that somebody meant: where it counts, how far it reaches, and what it never covers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from perf.commands.accept import command
from perf.gate import acceptance, checkouts
from perf.gate.acceptance import Acceptance, AcceptedRow
from perf.gate.comment import comment
from perf.gate.report import to_json
from perf.gate.terminal import text
from perf.gate.verdicts import Judgement, Verdict
from tests.gate.reports import KEY, memory, report, verdict
from tests.throwaway import Repository

COMMIT = "5e6f7a8b" + 32 * "0"


def accepted(*verdicts: Any, rows: tuple[AcceptedRow, ...]) -> Judgement:
    return acceptance.applied(Judgement(verdicts, ""), [Acceptance(COMMIT, "it is exact now", rows)])


def test_an_accepted_row_keeps_its_word_and_does_not_turn_the_report_red() -> None:
    found = accepted(verdict("SLOWER"), verdict("SAME", key="other"), rows=(AcceptedRow(KEY, "time", "SLOWER", 0.035),))
    slower, same = found.verdicts
    assert (slower.word, slower.accepted, slower.is_bad) == ("SLOWER", "it is exact now", False)
    assert same.accepted == ""
    assert found.exit_status == 0
    shown = report(*found.verdicts)
    assert "it is exact now" in text(shown)
    assert "it is exact now" in comment(shown)


@pytest.mark.parametrize(
    "row",
    [
        AcceptedRow("another row", "time", "SLOWER", 0.035),
        AcceptedRow(KEY, "peak_memory", "SLOWER", 0.035),
        AcceptedRow(KEY, "time", "BROKEN", None),
        AcceptedRow(KEY, "time", "SLOWER", 0.028),  # now it is slower by at least 2.9 %
    ],
)
def test_it_covers_its_own_row_quantity_word_and_size_only(row: AcceptedRow) -> None:
    found = accepted(verdict("SLOWER"), rows=(row,))
    assert found.verdicts[0].accepted == ""
    assert found.exit_status == 1


@pytest.mark.parametrize(
    ("reason", "is_accepted"),
    [("unavailable: no module x", True), ("unavailable: no module y", True), ("wrong: out differs", False)],
)
def test_a_row_that_fails_in_another_way_is_red_again(reason: str, is_accepted: bool) -> None:
    row = AcceptedRow(KEY, "time", "BROKEN", None, "unavailable")
    found = accepted(verdict("BROKEN", change=None, low=None, high=None, reason=reason), rows=(row,))
    assert (found.exit_status == 0) is is_accepted


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (verdict("BROKEN", high=None, reason="wrong: out differs"), "no wrong result can be accepted"),
        (verdict("LARGER", quantity="peak_memory", base=0.0, change=None, low=None, high=None), "by no share"),
    ],
)
def test_what_would_cover_anything_is_not_accepted(made: Verdict, message: str) -> None:
    with pytest.raises(click.ClickException, match=message):
        acceptance.of_report(report(made), "why")


def test_accepting_again_replaces_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "ROOT", tmp_path)
    (tmp_path / "perf").mkdir()
    slower, larger = AcceptedRow(KEY, "time", "SLOWER", 0.1), AcceptedRow(KEY, "peak_memory", "LARGER", 0.1)
    other = Acceptance("f" * 40, "another commit", (slower,))
    for each in (Acceptance(COMMIT, "both", (slower, larger)), other, Acceptance(COMMIT, "better", (slower,))):
        acceptance.add(each)
    assert "status" not in (tmp_path / acceptance.FILE).read_text(), "what says nothing makes no line to review"
    assert acceptance.in_checkout() == [
        Acceptance(COMMIT, "both", (larger,)),
        other,
        Acceptance(COMMIT, "better", (slower,)),
    ]


def test_what_is_accepted_is_what_is_worse_and_believed() -> None:
    rows = [verdict("SLOWER"), memory("LARGER", 100, 150), verdict("SAME", key="a"), verdict("AMBIGUOUS", key="b")]
    made = acceptance.of_report(report(*rows), "why")
    assert made == Acceptance(
        COMMIT, "why", (AcceptedRow(KEY, "time", "SLOWER", 0.035), AcceptedRow(KEY, "peak_memory", "LARGER", 0.5))
    )
    assert acceptance.applied(Judgement(tuple(rows), ""), [made]).exit_status == 0
    contaminated = report(*rows, contaminated="the controls moved")
    assert acceptance.of_report(contaminated, "why").rows == (AcceptedRow(KEY, "peak_memory", "LARGER", 0.5),)


def test_what_has_been_accepted_is_not_accepted_again() -> None:
    with pytest.raises(click.ClickException):
        acceptance.of_report(report(verdict("SLOWER", accepted="before")), "why")


def test_a_working_tree_has_no_commit_to_bind_to() -> None:
    made = report(verdict("SLOWER"), head={"commit": "working tree", "subject": "x"})
    with pytest.raises(click.ClickException):
        acceptance.of_report(made, "why")


@pytest.fixture
def here(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """The repository as this process's own."""
    for module in (acceptance, checkouts):
        monkeypatch.setattr(module, "ROOT", repository.folder)
    return repository


def test_it_counts_between_the_commits_that_hold_it_and_nowhere_else(here: Repository, tmp_path: Path) -> None:
    (here.folder / "cs336_systems" / "more.py").write_text("")
    slower = here.commit("Slower, and worth it")
    written = tmp_path / "report.json"
    made = dataclasses.replace(report(verdict("SLOWER")), head={"commit": slower, "subject": "x"})
    written.write_text(to_json(made))
    done = CliRunner().invoke(command, [str(written), "--reason", " it is exact now "])
    assert done.exit_code == 0, done.output
    assert "3.50 %" in done.stdout
    base, head = checkouts.resolve("base"), checkouts.resolve("HEAD")
    assert acceptance.between(base, head) == [], "it is not committed yet"
    assert len(acceptance.between(base, checkouts.working_tree())) == 1
    here.commit("Accept it")
    later = checkouts.resolve("HEAD")
    (one,) = acceptance.between(base, later)
    assert (one.commit, one.reason) == (slower, "it is exact now")
    assert acceptance.between(head, later) == [], "BASE has the regression already"
    assert acceptance.between(later, base) == []


@pytest.mark.parametrize(
    ("content", "reason", "message"),
    [
        ("no JSON", "why", "is no JSON"),
        ("{}", "why", "is of version None"),
        ('{"version": 99}', "why", "is of version 99; allowed: 1"),
        ("[" * 100000, "why", "recursion"),
        ("{}", " ", "--reason was empty; allowed:"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, reason: str, message: str
) -> None:
    monkeypatch.setattr(acceptance, "ROOT", tmp_path)
    (tmp_path / "report.json").write_text(content)
    done = CliRunner().invoke(command, [str(tmp_path / "report.json"), "--reason", reason])
    assert done.exit_code != 0
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / acceptance.FILE).exists()


@pytest.mark.parametrize("wrong", [{"high": "abc"}, {"quantity": "FOO"}])
def test_a_report_of_odd_verdicts_changes_no_file(here: Repository, tmp_path: Path, wrong: dict[str, Any]) -> None:
    made = dataclasses.replace(
        report(verdict("SLOWER")), head={"commit": here.git("rev-parse", "HEAD"), "subject": "x"}
    )
    document = json.loads(to_json(made))
    document["judgement"]["verdicts"][0] |= wrong
    (tmp_path / "report.json").write_text(json.dumps(document))
    done = CliRunner().invoke(command, [str(tmp_path / "report.json"), "--reason", "why"])
    assert done.exit_code != 0 and isinstance(done.exception, SystemExit)
    assert not (here.folder / acceptance.FILE).exists()


ROW = {"key": "k", "quantity": "time", "word": "SLOWER", "at_most": 1}


ENTRY = {"commit": "a", "reason": "b", "rows": [ROW]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"reason": None}, "reason is None; allowed:"),
        ({"rows": [ROW | {"at_most": "3 %"}]}, "at_most is '3 %'; allowed:"),
        ({"rows": [ROW | {"quantity": "t"}]}, "quantity is 't'; allowed:"),
        ({"rows": [ROW | {"word": "no"}]}, "word is 'no'; allowed:"),
        ({"rows": [{"key": "k"}]}, "missing"),
        ({"rows": [ROW | {"at_most": None}]}, "at_most of a SLOWER row is null; allowed:"),
        ({"rows": [ROW | {"at_most": float("nan")}]}, "at_most is nan; allowed:"),
        ({"rows": [ROW | {"state": "failed"}]}, "'state'; allowed:"),
        ({"until": "2027"}, "'until'; allowed:"),
    ],
)
def test_a_malformed_entry_is_one_clear_line_before_anything_is_measured(entry: dict[str, Any], message: str) -> None:
    assert acceptance.read(json.dumps([ENTRY]).encode())
    with pytest.raises(click.ClickException, match=f"perf/accepted.json .*{message}"):
        acceptance.read(json.dumps([ENTRY | entry]).encode())


@pytest.mark.parametrize("content", [b"", b"no JSON", b"{}", b"null", b"[1]", b"\xff", b"[" * 100000, None])
def test_a_malformed_file_is_one_clear_line_in_the_checkout_and_in_a_commit(
    here: Repository, content: bytes | None
) -> None:
    path = here.folder / acceptance.FILE
    path.parent.mkdir(exist_ok=True)
    if content is None:
        path.mkdir()
        (path / "in a folder").touch()
    else:
        path.write_bytes(content)
    here.commit("Accept in another way")
    base = checkouts.resolve("base")
    for head in (checkouts.working_tree(), checkouts.resolve("HEAD")):
        with pytest.raises(click.ClickException, match=r"^perf/accepted.json .*; allowed: .*$"):
            acceptance.between(base, head)


def test_a_file_with_a_byte_order_mark_is_read() -> None:
    assert acceptance.read(b"\xef\xbb\xbf" + json.dumps([ENTRY]).encode())
