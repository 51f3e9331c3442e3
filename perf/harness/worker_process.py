"""The supervisor's handle of a measuring process: start it, send requests, restart it after a crash or a hang."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from perf.harness import profiler

ENVIRONMENT = profiler.ENVIRONMENT | {"TRITON_DISABLE_LINE_INFO": "1"}  # with it a comment changes a kernel's digest
WORKERS = Path(__file__).parent / "workers"

START_LIMIT_S = 180.0


class WorkerProcess:
    """A restartable process that measures one checkout, or two side by side.

    `python` is the executable of another environment.
    """

    def __init__(self, device: str, *checkouts: Path, python: str = sys.executable):
        if len(checkouts) == 1:
            self._command = [python, "-P", str(WORKERS / "single.py"), device, *map(str, checkouts)]
        else:  # without -P: the script imports its neighbour by their common folder, which holds nothing else
            self._command = [python, str(WORKERS / "pair.py"), device, *map(str, checkouts)]
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._leaving = False

    def start(self) -> dict[str, Any]:
        """Start the process; return its greeting. Raises `SystemExit` with its last output if it sends none."""
        self._leaving = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | ENVIRONMENT,
            start_new_session=False,  # asv kills its process group on a timeout, and the worker belongs to it
        )
        greeting = self._receive(START_LIMIT_S)
        if "status" in greeting:
            raise SystemExit(f"perf: the measuring process did not start: {greeting['reason']}\n{self.last_output()}")
        return greeting

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a request and return its reply; a crash or a hang becomes a reply with that status."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        reply = self._receive(limit_s)
        self._leaving = reply.pop("leaving", False)
        return reply

    def alive(self) -> bool:
        """Return whether the process accepts another request: a process that announced its end may still run."""
        return self._process is not None and not self._leaving and self._process.poll() is None

    def stop(self) -> None:
        """Close the process's input; kill it if it does not end."""
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._wait_or_kill()
        self._process.stdout.close()
        if self._log is not None:
            self._log.close()
        self._process = None

    def _receive(self, limit_s: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        if not ready:
            return {
                "status": "hung",
                "reason": f"no answer within {limit_s:.0f} s; the process was killed{self._end()}",
            }
        text = self._process.stdout.readline()
        if text.endswith(b"\n"):
            return json.loads(text)
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return {"status": "crashed", "reason": f"the process died ({cause}){self._last_line()}"}

    def _end(self) -> str:
        """End a process that hangs; return where it was, innermost call first, if it can still say so."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        self._wait_or_kill()
        calls = re.findall(r'^  File ".*?([^/"]+)", line (\d+) in (\S+)$', self.last_output(), re.MULTILINE)
        return " in " + " < ".join(f"{name} ({file}:{line})" for file, line, name in calls[:4]) if calls else ""

    def _wait_or_kill(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_line(self) -> str:
        lines = self.last_output().strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""

    def last_output(self) -> str:
        """Return the end of what the process has written to its stderr, such as the traceback of an error."""
        assert self._log is not None
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4000))
        return self._log.read().decode(errors="replace")
