"""Untrusted text reaches a terminal and a page without escape sequences and in bounded length."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perf.gate import checkouts
from perf.gate.terminal import text
from perf.harness import lock
from perf.harness.lock import Busy, measuring
from perf.printable import collapsed, printable, printable_lines, shortened
from tests.gate.reports import report, verdict
from tests.throwaway import Repository

OSC = "\x1b]52;c;cm0gLXJmIC8=\x07"
HOSTILE = f"a{OSC}b\x1b[2J\x1b[1;1Hc\rd\n\u202ee\x9b31m"


@pytest.mark.parametrize("to_text", [printable, printable_lines, collapsed, shortened])
def test_nothing_but_text_is_left(to_text) -> None:
    shown = to_text(HOSTILE)
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert [char for char in shown if char in "abcde"][:1] == ["a"]
    assert to_text("plain text, é, 中") == "plain text, é, 中"


def test_a_long_line_is_cut() -> None:
    assert len(shortened("x" * 10_000)) == 200
    assert shortened("x" * 200) == "x" * 200


def test_a_report_in_a_terminal_is_text_whatever_its_commits_say() -> None:
    rows = [verdict(word, key=HOSTILE, reason=HOSTILE, accepted=HOSTILE) for word in ("SLOWER", "AMBIGUOUS")]
    hostile = {"commit": "a" * 40, "subject": HOSTILE}
    found = report(*rows, contaminated=HOSTILE, tests=HOSTILE, differences=((HOSTILE, HOSTILE),), command=HOSTILE)
    shown = text(replace(found, base=hostile, head=hostile))
    assert all(char.isprintable() or char == "\n" for char in shown)
    tame = report(*rows, contaminated="x", tests="x", differences=(("x", "x"),), command="x")
    assert shown.count("\n") == text(tame).count("\n"), "and forges no line"


def test_a_commits_subject_is_text_of_bounded_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(tmp_path / "repo")
    repository.commit("x" * 5_000 + "\x1b[31m")
    monkeypatch.setattr(checkouts, "ROOT", repository.folder)
    subject = checkouts.resolve("HEAD").subject
    assert len(subject) == 200 and subject.isprintable()


HOLDER = """
import sys
from pathlib import Path
from perf.harness import lock
lock.FOLDER, lock.visible_gpus = Path(sys.argv[1]), list
with lock.measuring("y\\x1b]52;c;cm0gLXJmIC8=\\x07"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_note_of_a_lock_follows_no_link_and_is_shown_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "FOLDER", tmp_path)
    monkeypatch.setattr(lock, "visible_gpus", list)
    victim, note = tmp_path / "victim", tmp_path / "perf-measuring.json"
    victim.write_text("mine")
    note.symlink_to(victim)
    with measuring("x"):
        assert victim.read_text() == "mine"
    note.unlink(missing_ok=True)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Busy) as refused, measuring("z"):
            pass
        holder.stdin.close()
    assert "y ]52" in str(refused.value) and str(refused.value).isprintable()
