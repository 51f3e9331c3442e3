"""End what a child process has started and left running: forks, pools of workers and daemons, in any session."""

import contextlib
import os
import secrets
import signal
from pathlib import Path

_PASSES = 100
"""A process may fork while the list is read; one that the kernel cannot end yet stays in it."""


def mark() -> dict[str, str]:
    """Return an environment variable for a child process, which all of its descendants inherit."""
    return {f"PERF_CHILD_{secrets.token_hex(8)}": "1"}


def end_marked(marked: dict[str, str]) -> None:
    """Kill every process that still has this variable; without /proc, as on macOS, none."""
    for _ in range(_PASSES):
        if not (found := _having(marked)):
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _having(marked: dict[str, str]) -> list[int]:
    (variable,) = (f"{name}={value}".encode() for name, value in marked.items())
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another account's
            if variable in environment.read_bytes().split(b"\0"):  # a zombie has none
                found.append(int(environment.parent.name))
    return found
