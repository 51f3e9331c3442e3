"""The supervisor's handle of a measuring process: start it, send requests, restart it after a crash or a hang."""

import re
import select
import sys
from pathlib import Path
from typing import Any

from perf.harness import profiler
from perf.harness.json_process import JsonProcess

ENVIRONMENT = profiler.ENVIRONMENT | {"TRITON_DISABLE_LINE_INFO": "1"}  # with it a comment changes a kernel's digest
SCRIPT = Path(__file__).parent / "workers" / "measuring.py"

START_LIMIT_S = 180.0

ENDS_WITHIN_S = 5.0
"""Time for a process to end by itself before it is killed."""


class WorkerProcess:
    """A restartable process that measures one checkout, or two side by side.

    `python` is the executable of another environment.
    """

    def __init__(self, device: str, *checkouts: Path, python: str = sys.executable):
        self._command = [python, "-P", str(SCRIPT), device, *map(str, checkouts)]
        self._process: JsonProcess | None = None
        self._leaving = False
        self._owes_reply = False

    def start(self) -> dict[str, Any]:
        """Start the process; return its greeting. Raises `SystemExit` with its last output if it sends none."""
        self._leaving = False
        self._process = JsonProcess(self._command, environment=ENVIRONMENT)  # in asv's group, which asv kills when late
        greeting = self._receive(START_LIMIT_S)
        if "status" in greeting:
            raise SystemExit(f"perf: the measuring process did not start: {greeting['reason']}\n{self.last_output()}")
        return greeting

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a request and return its reply; a crash or a hang becomes a reply with that status."""
        assert self._process is not None
        self._process.send(request)
        reply = self._receive(limit_s)
        self._leaving = reply.pop("leaving", False)
        return reply

    def alive(self) -> bool:
        """Return whether the process accepts another request: a process that announced its end may still run."""
        return self._process is not None and not self._leaving and self._process.is_running()

    def stop(self) -> None:
        """Close the process's input; kill it if it does not end, and what it has left running.

        A process whose reply nobody awaits any longer, as after Ctrl-C, is terminated.
        """
        if self._process is None:
            return
        self._process.end_input()
        if self._owes_reply:
            self._process.terminate()
        self._process.end(ENDS_WITHIN_S)
        self._process.close()
        self._process = None

    def _receive(self, limit_s: float) -> dict[str, Any]:
        assert self._process is not None
        self._owes_reply = True
        ready, _, _ = select.select([self._process], [], [], limit_s)
        self._owes_reply = False
        if not ready:
            return {
                "status": "hung",
                "reason": f"no answer within {limit_s:.0f} s; the process was killed{self._end()}",
            }
        if (reply := self._process.reply()) is not None:
            return reply
        return {"status": "crashed", "reason": f"the process died ({self._process.how_it_died()}){self._last_line()}"}

    def _end(self) -> str:
        """End a process that hangs; return where it was, innermost call first, if it can still say so."""
        assert self._process is not None
        self._process.ask_where()
        self._process.end(ENDS_WITHIN_S)
        calls = re.findall(r'^  File ".*?([^/"]+)", line (\d+) in (\S+)$', self.last_output(), re.MULTILINE)
        return " in " + " < ".join(f"{name} ({file}:{line})" for file, line, name in calls[:4]) if calls else ""

    def _last_line(self) -> str:
        lines = self.last_output().strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""

    def last_output(self) -> str:
        """Return the end of what the process has written to its stderr, such as the traceback of an error."""
        assert self._process is not None
        return self._process.log(max_bytes=4000)
