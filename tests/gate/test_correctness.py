"""HEAD's tests: their progress on a terminal, their end, their time limit."""

import io
import sys
from pathlib import Path

import pytest

from perf.gate import correctness
from perf.gate.checkouts import WORKING_TREE
from perf.gate.evidence import Arm

PYTEST = """#!{python}
import signal, sys
print("." * 72 + " [ 36%]", flush=True)
print("." * 72 + " [ 72%]", flush=True)
{then}
"""
ENDING = 'print("." * 56 + "  [100%]"); print("200 passed in 3.21s"); sys.exit(0)'


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def run(tmp_path, monkeypatch):
    def run(then: str) -> correctness.PytestResult:
        executable = Path(tmp_path, "python")
        executable.write_text(PYTEST.format(python=sys.executable, then=then))
        executable.chmod(0o700)
        return correctness.run_tests(Arm(WORKING_TREE, "", python=str(executable)))

    return run


def test_the_share_of_the_tests_that_has_run_is_on_the_terminal(run, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    result = run(ENDING)
    assert (result.passed, result.summary) == (True, "200 passed in 3.21s")
    shown = terminal.getvalue()
    assert "36%" in shown and "72%" in shown


def test_tests_that_do_not_end_are_ended(run, monkeypatch):
    monkeypatch.setattr(correctness, "LIMIT_S", 0.5)
    result = run("signal.pause()")
    assert not result.passed
    assert "no end" in result.summary


def test_a_daemon_of_the_tests_is_ended_and_keeps_nobody_waiting(run):
    daemon = 'import subprocess; subprocess.Popen(["sleep", "1000"], start_new_session=True)'
    result = run(f"{daemon}\n{ENDING}")
    assert result.passed
