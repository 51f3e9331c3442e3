"""Run HEAD's tests before timing: incorrect code is not timed."""

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO

import click

from perf.files import scratch_folder
from perf.gate.checkouts import clone
from perf.gate.evidence import Arm
from perf.harness.descendants import end_marked, mark
from perf.harness.progress import TerminalBar
from perf.harness.workers.measuring import die_with_parent
from perf.printable import printable_lines

LIMIT_S = 1800.0


@dataclass(frozen=True)
class PytestResult:
    """Result of a pytest run."""

    passed: bool
    summary: str
    """pytest's last line: "1766 passed, 391 skipped in 371.33s"."""

    output: str
    """End of pytest's output."""


SKIPPED = PytestResult(True, "not run: --no-tests", "")
NO_CODE = PytestResult(True, "not run: no code has changed", "")


def run_tests(head: Arm) -> PytestResult:
    """Run pytest in HEAD's checkout; print its output if it fails."""
    click.echo("Running HEAD's tests, before the budget begins; --no-tests skips them", err=True)
    with scratch_folder("perf-gate-tests-") as folder:
        checkout = clone(head, folder / "head")
        command = [head.python or sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no"]
        marked = mark()
        with subprocess.Popen(
            command,
            cwd=checkout,
            env=os.environ | marked | {"PYTHONUNBUFFERED": "1"},  # it shows its progress as it runs
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        ) as pytest:
            timed_out = False
            lines: list[bytes] = []
            reader = threading.Thread(target=_read, args=(pytest.stdout, lines), daemon=True)
            reader.start()
            try:
                pytest.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                timed_out = True
                os.killpg(pytest.pid, signal.SIGKILL)
            except BaseException:  # on Ctrl-C and SIGTERM, pytest and its workers end too
                os.killpg(pytest.pid, signal.SIGKILL)
                raise
            finally:
                end_marked(marked)  # a daemon keeps the output open
                reader.join()
    output = b"".join(lines).decode(errors="replace")
    summary = f"no end within {LIMIT_S:.0f} s" if timed_out else _summary(output, pytest.returncode)
    result = PytestResult(not timed_out and pytest.returncode == 0, summary, output[-4000:])
    if not result.passed:
        click.echo(printable_lines(result.output), err=True)
    return result


def _read(stream: IO[bytes], lines: list[bytes]) -> None:
    """Collect pytest's output, and show the share of the tests that it has run on a terminal."""
    with TerminalBar(100, "%", "testing") as bar:
        for line in stream:
            lines.append(line)
            if share := re.search(rb"\[ *(\d+)%\]\s*$", line):
                bar.reach(int(share[1]))


def _summary(output: str, status: int) -> str:
    for line in reversed(output.splitlines()):
        if re.search(r"\b(passed|failed|error|errors|no tests ran)\b.* in [\d.]+", line):
            return line.strip("= \n")
    return f"pytest ended with status {status}"
