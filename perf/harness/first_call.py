"""first_call: the time to the first result, in a fresh process with nothing compiled."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf.files import scratch_folder
from perf.harness.case import Cache, Case, ClockName
from perf.workloads.workload import Workload

WORKER = Path(__file__).parent / "workers" / "first_call.py"
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
LIMIT_S = 150.0


class FirstCallClock:
    """first_call: from the call to its result, including compilation, loading and autotuning.

    Every sample is a process of its own with empty compiler caches. Importing torch and allocating inputs do not count.
    It may write Python's bytecode, as an installation does: without it, what torch imports late takes seconds more.
    """

    name: ClockName = "first_call"
    call_s = 0.0

    def __init__(self, case: Case, checkout: Path):
        # Without -P, because the script imports its neighbour by their common folder, which holds nothing else.
        self._command = [sys.executable, str(WORKER), str(checkout), json.dumps(case.to_json())]

    def warm_up(self, work: Workload, read_state: Callable[[], dict[str, Any]] | None = None) -> dict[str, Any]:
        """Warm nothing up; return the state."""
        return read_state() if read_state else {}

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Take `count` samples, a process each. Raises `RuntimeError` with the last line of a process that fails."""
        if cache != "cold":
            raise ValueError(f"cache={cache!r} was given; a first call is 'cold' only")
        return [self._sample() for _ in range(count)]

    def _sample(self) -> float:
        with scratch_folder("perf-first-call-") as folder:
            caches = {name: str(Path(folder, name)) for name in CACHES}
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | caches
            result, log = Path(folder, "seconds"), Path(folder, "log")
            # Files instead of pipes: a compiler's own workers inherit them and stay alive for a minute.
            with log.open("wb") as stream:
                child = subprocess.Popen([*self._command, str(result)], env=environment, stdout=stream, stderr=stream)
                try:
                    code = child.wait(LIMIT_S)
                except subprocess.TimeoutExpired:
                    raise RuntimeError(f"the first call took more than {LIMIT_S:.0f} s") from None
                finally:
                    child.kill()
                    child.wait()
            if code != 0:
                lines = log.read_text(errors="replace").strip().splitlines() or [f"exit status {code}"]
                raise RuntimeError(f"the process of the first call failed: {lines[-1]}")
            return float(result.read_text())
