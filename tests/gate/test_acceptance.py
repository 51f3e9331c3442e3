"""A regression that somebody meant: where it counts, how far it reaches, and what it never covers."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from perf.gate import acceptance, checkouts
from perf.gate.acceptance import Acceptance, Row
from perf.gate.comment import comment
from perf.gate.report import to_json
from perf.gate.terminal import text
from perf.gate.verdicts import Judgement
from perf.gate.wording import headline
from tests.gate.reports import KEY, memory, report, verdict
from tests.throwaway import Repository

COMMIT = "5e6f7a8b" + 32 * "0"


def accepted(*verdicts: Any, rows: tuple[Row, ...]) -> Judgement:
    return acceptance.applied(Judgement(verdicts, ""), [Acceptance(COMMIT, "it is exact now", rows)])


def test_an_accepted_row_keeps_its_word_and_does_not_turn_the_report_red() -> None:
    found = accepted(verdict("SLOWER"), verdict("SAME", key="other"), rows=(Row(KEY, "time", "SLOWER", 0.035),))
    slower, same = found.verdicts
    assert (slower.word, slower.accepted, slower.is_bad) == ("SLOWER", "it is exact now", False)
    assert same.accepted == ""
    assert found.exit_status == 0
    shown = report(*found.verdicts)
    assert headline(shown) == "Nothing is worse, 1 worse and accepted, 1 same"
    assert "accepted: it is exact now" in text(shown)
    assert "<summary>accepted (1)</summary>" in comment(shown)


@pytest.mark.parametrize(
    "row",
    [
        Row("another row", "time", "SLOWER", 0.035),
        Row(KEY, "peak_memory", "SLOWER", 0.035),
        Row(KEY, "time", "BROKEN", None),
        Row(KEY, "time", "SLOWER", 0.028),  # now it is slower by at least 2.9 %
    ],
)
def test_it_covers_its_own_row_quantity_word_and_size_only(row: Row) -> None:
    found = accepted(verdict("SLOWER"), rows=(row,))
    assert found.verdicts[0].accepted == ""
    assert found.exit_status == 1


def test_what_is_accepted_is_what_is_worse_and_believed() -> None:
    rows = [verdict("SLOWER"), memory("LARGER", 100, 150), verdict("SAME", key="a"), verdict("AMBIGUOUS", key="b")]
    document = json.loads(to_json(report(*rows)))
    made = acceptance.of_report(document, "why")
    assert made == Acceptance(
        COMMIT, "why", (Row(KEY, "time", "SLOWER", 0.035), Row(KEY, "peak_memory", "LARGER", 0.5))
    )
    assert acceptance.applied(Judgement(tuple(rows), ""), [made]).exit_status == 0
    contaminated = json.loads(to_json(report(*rows, contaminated="the controls moved")))
    assert acceptance.of_report(contaminated, "why").rows == (Row(KEY, "peak_memory", "LARGER", 0.5),)


def test_what_has_been_accepted_is_not_accepted_again() -> None:
    document = json.loads(to_json(report(verdict("SLOWER", accepted="before"))))
    with pytest.raises(click.ClickException, match="nothing to accept"):
        acceptance.of_report(document, "why")


def test_a_working_tree_has_no_commit_to_bind_to() -> None:
    made = report(verdict("SLOWER"), head={"commit": "working tree", "subject": "x"})
    with pytest.raises(click.ClickException, match="working tree; allowed: one of a commit"):
        acceptance.of_report(json.loads(to_json(made)), "why")


@pytest.fixture
def here(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """The repository as this process's own."""
    for module in (acceptance, checkouts):
        monkeypatch.setattr(module, "ROOT", repository.folder)
    return repository


def run(repository: Repository, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "perf", "accept", *arguments]
    return subprocess.run(
        command, cwd=repository.folder, env=repository.environment, capture_output=True, text=True, check=False
    )


def test_it_counts_between_the_commits_that_hold_it_and_nowhere_else(here: Repository, tmp_path: Path) -> None:
    (here.folder / "cs336_systems" / "more.py").write_text("")
    slower = here.commit("Slower, and worth it")
    written = tmp_path / "report.json"
    made = dataclasses.replace(report(verdict("SLOWER")), head={"commit": slower, "subject": "x"})
    written.write_text(to_json(made))
    done = run(here, str(written), "--reason", " it is exact now ")
    assert done.returncode == 0, done.stderr
    assert "SLOWER by up to 3.50 %" in done.stdout
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
    ("content", "arguments", "said"),
    [
        ("no JSON", ["--reason", "why"], "is no report of a gate: JSONDecodeError"),
        ("{}", ["--reason", "why"], "is no report of a gate: KeyError: 'head'"),
        ("{}", ["--reason", " "], "--reason was empty; allowed: a sentence"),
    ],
)
def test_bad_input_is_one_clear_line(
    repository: Repository, tmp_path: Path, content: str, arguments: list[str], said: str
) -> None:
    (tmp_path / "report.json").write_text(content)
    done = run(repository, str(tmp_path / "report.json"), *arguments)
    assert done.returncode != 0
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (repository.folder / acceptance.FILE).exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"commit": "abc"}]', "KeyError: 'reason'"),
        ('[{"commit": "abc", "reason": 3, "rows": []}]', "TypeError: reason is 3; allowed: text"),
        (
            '[{"commit": "a", "reason": "b", "rows": '
            '[{"key": "k", "quantity": "time", "word": "SLOWER", "at_most": "3 %"}]}]',
            "TypeError: at_most is '3 %'; allowed: a number or null",
        ),
        (
            '[{"commit": "a", "reason": "b", "rows": [{"key": "k", "quantity": "t", "word": "SLOWER", "at_most": 1}]}]',
            "ValueError: quantity is 't'; allowed: time, peak_memory",
        ),
        (
            '[{"commit": "a", "reason": "b", "rows": [{"key": "k", "quantity": "time", "word": "no", "at_most": 1}]}]',
            "ValueError: word is 'no'; allowed: BROKEN, SLOWER, LARGER",
        ),
    ],
)
def test_a_file_of_another_form_is_one_clear_line_before_anything_is_measured(
    here: Repository, content: str, said: str
) -> None:
    (here.folder / acceptance.FILE).write_text(content)
    with pytest.raises(click.ClickException, match=f"perf/accepted.json cannot be read: {said}"):
        acceptance.between(checkouts.resolve("base"), checkouts.working_tree())
