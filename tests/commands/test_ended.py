"""A gate that is ended, in its tests or in a visit, leaves nothing running and nothing behind; nor does asv run."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.throwaway import MACHINE, Repository

DAEMON = """
import os, signal, subprocess, sys
waits = "import signal; print(flush=True); signal.pause()"
daemon = subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, start_new_session=True)
daemon.stdout.readline()
"""
WAITING_TEST = (
    DAEMON
    + """
def test_waits():
    with open({file!r}, "w") as file:
        file.write(f"{{os.getpid()}} {{daemon.pid}}")
    signal.pause()
"""
)
WAITING_PACKAGE = (
    DAEMON
    + """
with open({file!r}, "w") as file:
    file.write(f"{{os.getpid()}} {{daemon.pid}}")
signal.pause()
"""
)
COMMANDS = {
    "a gate's tests": ("tests/test_waits.py", WAITING_TEST, ["perf", "gate", "base", "HEAD"]),
    "a gate": ("cs336_systems/attention/reference.py", WAITING_PACKAGE, ["perf", "gate", "base", "HEAD", "--no-tests"]),
    "asv run": (
        "cs336_systems/attention/reference.py",
        WAITING_PACKAGE,
        ["asv", "run", "HEAD^!", "--machine", MACHINE],
    ),
}
"""Where the code that waits lies, what it is, and what runs it."""


@contextmanager
def watched(text: str) -> Iterator[list[int]]:
    watched = [os.pidfd_open(int(pid)) for pid in text.split()]
    yield watched
    for each in watched:
        os.close(each)


# asv's handlers and the gate's hear all three; to what the gate waits for it matters only how Python is left.
@pytest.mark.parametrize(
    ("ended", "number"),
    [
        ("a gate's tests", signal.SIGINT),
        ("a gate's tests", signal.SIGTERM),
        ("a gate", signal.SIGINT),
        ("a gate", signal.SIGHUP),
        ("asv run", signal.SIGINT),
        pytest.param("asv run", signal.SIGTERM, marks=pytest.mark.slow),  # heard as SIGHUP is, and by a gate above
        ("asv run", signal.SIGHUP),
    ],
)
def test_what_is_ended_leaves_nothing_running_and_nothing_behind(
    repository: Repository, tmp_path: Path, ended: str, number: signal.Signals
) -> None:
    file, temporary = tmp_path / "pids", tmp_path / "t"
    temporary.mkdir()
    os.mkfifo(file)
    begun = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    (repository.folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (repository.folder / "tests").mkdir()
    place, waiting, arguments = COMMANDS[ended]
    (repository.folder / place).write_text(waiting.format(file=str(file)))
    repository.commit("Wait")
    command = [sys.executable, "-m", *arguments, "-b", r"SmokeAttention.*\(128.*'reference'"]
    environment = repository.environment | {"TMPDIR": str(temporary)}
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs under nohup ignores it, children too
    with subprocess.Popen(
        command, cwd=repository.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as gate:
        signal.signal(signal.SIGINT, heard)
        try:
            assert select.select([begun], [], [], 60)[0], "the code that waits has not begun"
            with watched(os.read(begun, 100).decode()) as processes:
                gate.send_signal(number)
                for process in processes:
                    assert select.select([process], [], [], 60)[0], "it is still there"
            gate.wait()
        finally:
            gate.kill()
    os.close(begun)
    assert gate.returncode == 128 + number
    assert list(temporary.glob("perf-*")) == []
