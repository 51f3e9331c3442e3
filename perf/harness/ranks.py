"""ranks: a case on several processes, one for each rank, timed by the slowest rank."""

import contextlib
import dataclasses
import re
import selectors
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf.files import scratch_folder
from perf.harness.case import Cache, Case, ClockName
from perf.harness.clock import WARM_UP_S
from perf.harness.injection import Injection
from perf.harness.json_process import JsonProcess
from perf.harness.spans import Span
from perf.workloads.workload import Floor, Unavailable, Workload, WrongResult

SCRIPT = Path(__file__).parent / "workers" / "rank.py"
LIMIT_S = 60.0
"""Timeout of a collective: a rank gives up long before the visit counts as hung."""

CAUSE_S = 1.0
"""Time to wait for further replies after a bad reply: other ranks may notice a rank's death before its pipe closes."""


class Ranks:
    """Processes that run one case after the other; every request goes to all, and the first bad reply ends them all.

    A bad reply raises `Unavailable`, `WrongResult`, `torch.OutOfMemoryError` or else `RuntimeError`, with the rank; the
    death of a rank raises `RuntimeError`. The processes die with this process.
    """

    def __init__(self, device: str, world_size: int, checkout: Path):
        _require_devices(device, world_size)
        self.world_size, self.alive = world_size, True
        self._held = contextlib.ExitStack()
        self._folder = self._held.enter_context(scratch_folder("perf-ranks-"))
        self._processes: list[JsonProcess] = []
        for rank in range(world_size):
            arguments = [device, str(checkout), str(rank), str(world_size), str(self._folder), str(LIMIT_S)]
            # Without -P, because the script imports its neighbour by their common folder, which holds nothing else.
            self._processes.append(JsonProcess([sys.executable, str(SCRIPT), *arguments]))

    def build(self, case: Case, injection: Injection | None = None, arm: int = 0) -> Workload:
        """Build the case's work as the rest of the harness sees it; of an injection only bytes are held at first.

        With `arm` it is built beside arms 0 to `arm` - 1; arm 0 takes the place of all that was built before.
        """
        planted = dataclasses.asdict(injection) if injection else None
        reply = self.ask("build", arm=arm, case=case.to_json(), injection=planted)[0]
        return Workload(
            run=lambda: self.ask("run", arm=arm),
            check=lambda: max(reply["error"] for reply in self.ask("check", arm=arm)),
            floor=Floor(**reply["floor"]),
            without=(lambda: None) if reply["is_difference"] else None,
            facts=lambda: self.ask("facts", arm=arm)[0]["facts"],
        )

    def ask(self, do: str, *, meanwhile: Callable[[], Any] = lambda: None, **arguments: Any) -> list[dict[str, Any]]:
        """Return one reply a rank, in order of rank; call `meanwhile` once all ranks have the request."""
        for process in self._processes:
            process.send({"do": do, **arguments})
        meanwhile()
        replies: dict[int, dict[str, Any]] = {}
        bad: list[int] = []
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                selector.register(process, selectors.EVENT_READ, rank)
            while len(replies) < len(self._processes):
                ready = selector.select(CAUSE_S if bad else None)
                if not ready:
                    break
                for key, _ in ready:
                    rank = key.data
                    replies[rank] = self._processes[rank].reply() or self._death_of(rank)
                    selector.unregister(key.fileobj)
                    if replies[rank]["status"] != "ok":
                        bad.append(rank)
        if bad:
            cause = min(bad, key=lambda rank: replies[rank]["status"] != "crashed")  # without a crash the first reply
            if replies[cause]["status"] in ("crashed", "error"):
                sys.stderr.write(self._processes[cause].log())  # the traceback
            self.close()
            raise _error(cause, replies[cause])
        return [replies[rank] for rank in range(len(self._processes))]

    def slow_down(self, seconds: float) -> None:
        """Put the injection's share of `seconds` into every further run of what was built last, on every rank."""
        self.ask("slow_down", seconds=seconds)

    def memory(self) -> dict[str, Any]:
        """Return `memory.peak_memory` of the rank with the highest peak; {} on a CPU."""
        highest = max(self.ask("memory"), key=lambda reply: reply.get("peak_bytes", 0))
        return {name: value for name, value in highest.items() if name != "status"}

    def spans(self) -> list[dict[str, list[Span]]]:
        """Return when each rank computed and when it communicated in one run: [start, end], seconds.

        A run before it is thrown away: in the first the profiler spends time of its own.
        """
        self.ask("spans", arm=0)
        return [{kind: reply[kind] for kind in ("compute", "communication")} for reply in self.ask("spans", arm=0)]

    def close(self) -> None:
        """Kill all processes: some may wait for others in a collective."""
        self.alive = False
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.close()
        self._held.close()

    def _death_of(self, rank: int) -> dict[str, Any]:
        ended = self._processes[rank].how_it_died()
        cause = _cause_of_death(self._processes[rank].log())
        return {"status": "crashed", "reason": f"its process died ({ended}){f': {cause}' if cause else ''}"}


class RankPool:
    """The ranks of one checkout. They live until another number of them is asked for, since starting takes seconds."""

    def __init__(self, device: str, checkout: Path):
        self._device, self._checkout = device, checkout
        self.ranks: Ranks | None = None

    def of(self, world_size: int) -> Ranks:
        """Return the living ranks, or new ones. Raises `Unavailable` without as many devices."""
        if self.ranks is None or not self.ranks.alive or self.ranks.world_size != world_size:
            self.close()
            self.ranks = Ranks(self._device, world_size, self._checkout)
        return self.ranks

    def close(self) -> None:
        """End the ranks."""
        if self.ranks is not None and self.ranks.alive:
            self.ranks.close()
        self.ranks = None


class RankClock:
    """ranks: from a barrier until the slowest rank has finished; very short calls in groups."""

    name: ClockName = "ranks"
    call_s = 0.0
    whole_s: float | None = None
    """Median of the last batch's whole calls, if its samples are differences."""

    def __init__(self, ranks: Ranks, arm: int = 0):
        self._ranks, self._arm = ranks, arm

    def warm_up(self, work: Workload, read_state: Callable[[], dict[str, Any]] | None = None) -> dict[str, Any]:
        """Warm up on every rank; read the state while all take one more sample."""
        self.call_s = self._ranks.ask("warm_up", arm=self._arm, seconds=WARM_UP_S)[0]["call_s"]
        state: dict[str, Any] = {}
        if read_state:
            self._ranks.ask("take", arm=self._arm, count=1, meanwhile=lambda: state.update(read_state()))
        return state

    def batch(
        self, work: Workload, cache: Cache, count: int, while_busy: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Take `count` samples, each of the slowest rank; of a difference, of two calls of each arm."""
        if cache != "warm":
            raise ValueError(f"cache={cache!r} was given; ranks are timed 'warm' only")
        replies = self._ranks.ask("take", arm=self._arm, count=count, meanwhile=while_busy)
        slowest, without = (
            [max(sample) for sample in zip(*(reply[name] for reply in replies), strict=True)]
            for name in ("samples_s", "without_s")
        )
        if not without:
            return slowest
        self.whole_s = statistics.median(slowest)
        gaps = [time - other for time, other in zip(slowest, without, strict=True)]
        return [statistics.fmean(two) for two in zip(gaps[::2], gaps[1::2], strict=True)]


def _cause_of_death(log: str) -> str:
    """Return the message of a C++ error, which ends in a list of frames, or else the last line of the log."""
    error = re.search(r"Watchdog caught .*", log) or re.search(r"(?<=what\(\):).*", log)  # NCCL's timeout; any other
    cause = error[0] if error else (log.strip().splitlines() or [""])[-1]
    return cause.strip()[:200]


def _require_devices(device: str, world_size: int) -> None:
    if device != "cuda":
        return
    import torch

    if torch.cuda.device_count() < world_size:
        raise Unavailable(f"needs {world_size} GPUs; this machine has {torch.cuda.device_count()}")


def _error(rank: int, reply: dict[str, Any]) -> Exception:
    import torch

    kinds = {"unavailable": Unavailable, "wrong": WrongResult, "out_of_memory": torch.OutOfMemoryError}
    return kinds.get(reply["status"], RuntimeError)(f"rank {rank}: {reply['reason']}")
