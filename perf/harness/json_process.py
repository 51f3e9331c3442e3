"""A child process that answers requests on its stdin by replies on its stdout, each a line of JSON."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from perf.harness.descendants import end_marked, mark


def take_pipes() -> tuple[TextIO, TextIO]:
    """Return this process's stdin and stdout, and let them be empty and stderr for all other code.

    A library's output must not get between two replies. Code that reads its input, as `breakpoint()` does, would take a
    request, or wait for one until the process is killed.
    """
    requests, replies = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return requests, replies


class JsonProcess:
    """Start the process. What it writes to its stderr is kept; its environment is this one's with `environment`."""

    def __init__(self, command: Sequence[str], *, folder: Path | None = None, environment: Mapping[str, str] = {}):
        self._mark = mark()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment | self._mark,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.pid = self._process.pid

    def send(self, request: dict[str, Any]) -> None:
        """Send a request; a process that has died gets none."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()

    def fileno(self) -> int:
        """Return the file that is ready to read when a reply has come or the process has died."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def reply(self) -> dict[str, Any] | None:
        """Wait for the next reply; None if the process has died."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        return json.loads(text) if text.endswith(b"\n") else None

    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def how_it_died(self) -> str:
        """Wait for the end: "SIGKILL", "exit status 1"."""
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def log(self, max_bytes: int | None = None) -> str:
        """Return what the process has written to its stderr, or the end of it, such as the traceback of an error."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - max_bytes) if max_bytes else 0)
        return self._log.read().decode(errors="replace")

    def ask_where(self) -> None:
        """Make the process write the calls of its threads to its log, if it has asked `faulthandler` to."""
        self._process.send_signal(signal.SIGUSR1)

    def end(self, timeout_s: float) -> None:
        """Wait for the end; kill the process after this time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def end_input(self) -> None:
        """Close its stdin, at which it ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill the process, without waiting for its end."""
        self._process.kill()

    def terminate(self) -> None:
        """Ask the process to end, without waiting for its end."""
        self._process.terminate()

    def close(self) -> None:
        """Kill the process if it runs, and what it has left running; wait for its end and close its files."""
        self.kill()
        self._process.wait()
        end_marked(self._mark)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
