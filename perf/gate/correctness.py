"""HEAD's own tests, before anything is timed: a wrong answer has no speed."""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perf.gate.checkouts import clone
from perf.gate.evidence import Arm

LIMIT_S = 1800.0


@dataclass(frozen=True)
class Tests:
    """How they ended."""

    passed: bool
    summary: str
    """pytest's last line: "1766 passed, 391 skipped in 371.33s"."""

    output: str
    """The end of what pytest printed."""


def run_tests(head: Arm, paths: tuple[str, ...] = ()) -> Tests:
    """Run pytest in HEAD's checkout; all its tests, or those under `paths`."""
    with tempfile.TemporaryDirectory(prefix="perf-gate-tests-", ignore_cleanup_errors=True) as folder:
        checkout = clone(head, Path(folder) / "head")
        command = [head.python or sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", *paths]
        try:
            done = subprocess.run(
                command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            return Tests(
                False, f"no end within {LIMIT_S:.0f} s", (error.stdout or b"").decode(errors="replace")[-4000:]
            )
    output = done.stdout.decode(errors="replace")
    return Tests(done.returncode == 0, _summary(output, done.returncode), output[-4000:])


def _summary(output: str, status: int) -> str:
    for line in reversed(output.splitlines()):
        if re.search(r"\b(passed|failed|error|errors|no tests ran)\b.* in [\d.]+", line):
            return line.strip("= \n")
    return f"pytest ended with status {status}"
