"""HEAD's own tests, before anything is timed: a wrong answer has no speed."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass

from perf.files import scratch_folder
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
    with scratch_folder("perf-gate-tests-") as folder:
        checkout = clone(head, folder / "head")
        command = [head.python or sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", *paths]
        with subprocess.Popen(
            command,
            cwd=checkout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        ) as pytest:
            is_late = False
            try:
                said, _ = pytest.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                is_late = True
                os.killpg(pytest.pid, signal.SIGKILL)
                said, _ = pytest.communicate()
            except BaseException:  # Ctrl-C, SIGTERM: neither pytest nor a worker of its goes on
                os.killpg(pytest.pid, signal.SIGKILL)
                raise
    output = said.decode(errors="replace")
    if is_late:
        return Tests(False, f"no end within {LIMIT_S:.0f} s", output[-4000:])
    return Tests(pytest.returncode == 0, _summary(output, pytest.returncode), output[-4000:])


def _end_with_parent() -> None:
    """A gate that is killed outright ends nothing itself."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _summary(output: str, status: int) -> str:
    for line in reversed(output.splitlines()):
        if re.search(r"\b(passed|failed|error|errors|no tests ran)\b.* in [\d.]+", line):
            return line.strip("= \n")
    return f"pytest ended with status {status}"
