"""One visit to one case, inside a worker process: build, check, memory, warm-up, samples. Independent of asv."""

import dataclasses
import hashlib
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf.harness.case import Case
from perf.harness.clock import Clock, Stop, visit
from perf.harness.explanation import explain
from perf.harness.first_call import FirstCallClock
from perf.harness.instruments import Instruments
from perf.harness.memory import peak_memory
from perf.harness.ranks import RankClock, RankPool, Ranks
from perf.harness.reach import entered
from perf.harness.status import one_line
from perf.workloads import PACKAGE, build
from perf.workloads.workload import Workload


class Spent:
    """The durations of a visit's phases in milliseconds, by the host's clock."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._since = time.perf_counter()

    def on(self, what: str) -> None:
        """Add the time since the last call to `what`."""
        now = time.perf_counter()
        self.ms[what] = round(self.ms.get(what, 0.0) + (now - self._since) * 1e3, 1)
        self._since = now


class Worker:
    """The process that visits the cases of one checkout."""

    def __init__(self, device_kind: str, checkout: Path):
        self._checkout = checkout
        self._package_digest = pin_package(checkout)
        self.instruments = Instruments(device_kind)
        self._pool = RankPool(device_kind, checkout)
        self._examined: tuple[Any, dict[str, Any]] = None, {}

    def greeting(self) -> dict[str, Any]:
        """Return device, software, ceilings and the digest of the imported package."""
        return self.instruments.greeting(self._package_digest)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Visit `request["case"]`; with `first`, also check its output and measure its memory, once for all clocks.

        `stop` overrides fields of `clock.Stop`; `ceilings` are the best rates of other processes; with `watch`, a first
        visit also records what the case runs (`reach.entered`). Never raises: an error becomes the visit's status and
        reason.
        """
        case = Case(**request["case"])
        stop = Stop(**request["stop"])
        self.instruments.merge_ceilings(request["ceilings"])
        return self.instruments.with_status(
            lambda: self._visit(case, stop, request["first"], request.get("watch", False))
        )

    def _visit(self, case: Case, stop: Stop, first: bool, watch: bool) -> dict[str, Any]:
        spent = Spent()
        ranks = self._ranks_of(case)
        spent.on("start")
        clock = RankClock(ranks) if ranks else self._clock_of(case)
        if first or case.clock == "first_call":  # the first visit is discarded; a first call takes a process
            stop = dataclasses.replace(stop, max_samples=1)

        def make() -> Workload:
            return ranks.build(case) if ranks else build(case.workload, case.params, case.device)

        reply: dict[str, Any] = {}
        if first:  # neighbours in the grid differ in their clock
            same_but_for_clock = case.workload, case.clock == "first_call", case.params | {"clock": None}
            if self._examined[0] != same_but_for_clock:
                self._examined = same_but_for_clock, examine(self.instruments, case, make, ranks, spent)
            reply |= self._examined[1]
            if watch:
                reply |= self._watch(make)
                spent.on("watch")
        if not case.timed:
            return reply | {"spent_ms": spent.ms}
        work = make()
        spent.on("build")
        nvml = self.instruments.nvml
        reply["state"] = clock.warm_up(work, nvml.state if nvml else None)
        spent.on("warm_up")
        if not (first and case.clock == "first_call"):  # such a sample takes seconds
            reply |= self._sample(case, clock, work, stop)
        spent.on("sample")
        return reply | {"spent_ms": spent.ms}

    def _watch(self, make: Callable[[], Workload]) -> dict[str, Any]:
        """Record what the case runs. An error fails nothing: a case without a record is measured whatever changes."""
        try:
            return {"entered": entered(make)}
        except Exception as error:
            print(f"not recorded what this case runs: {one_line(error)}", file=sys.stderr)
            return {}
        finally:
            self.instruments.leftovers.release()

    def _sample(self, case: Case, clock: Clock, work: Workload, stop: Stop) -> dict[str, Any]:
        nvml = self.instruments.nvml
        taken = visit(clock, work, case.cache, stop, nvml.throttling if nvml else lambda: [])
        self.instruments.require_above_floor(taken.samples_s, work, case.cache)
        sampled: dict[str, Any] = {"samples_ns": [round(sample * 1e9) for sample in taken.samples_s]}
        if taken.throttled:
            sampled |= {"throttled": taken.throttled, "reason": f"the GPU throttled: {', '.join(taken.reasons)}"}
        if 2 * len(taken.throttled) > len(taken.samples_s):
            sampled["status"] = "throttled"
        return sampled

    def _ranks_of(self, case: Case) -> Ranks | None:
        """Return the processes for a case of several ranks; another case has this GPU to itself."""
        if case.clock == "ranks":
            return self._pool.of(case.params["world_size"])
        self._pool.close()
        return None

    def _clock_of(self, case: Case) -> Clock:
        if case.clock == "first_call":
            return FirstCallClock(case, self._checkout)
        return self.instruments.clock(case.clock)


def examine(
    instruments: Instruments, case: Case, make: Callable[[], Workload], ranks: Ranks | None, spent: Spent
) -> dict[str, Any]:
    """Measure what does not depend on the clock: the output's error, facts, kernels, peak memory."""
    work = make()
    spent.on("build")
    work.prepare()
    work.run()
    instruments.synchronize()
    spent.on("first_run")
    examined = {"error": work.check(), "floor": vars(work.floor)}
    spent.on("check")
    if facts := work.facts():
        examined["facts"] = facts
    if ranks:
        examined |= ranks.memory()
        spent.on("memory")
    elif instruments.device == "cuda" and case.clock != "first_call":
        examined |= _explain(work)
        spent.on("explain")
        del work  # two may not fit
        examined |= peak_memory(make, instruments.leftovers)
        instruments.leftovers.release()  # a compiled model is part of a cycle, and two may not fit
        spent.on("memory")
    return examined


def _explain(work: Workload) -> dict[str, Any]:
    """Explain the work; an error here does not fail the case."""
    try:
        return explain(work)
    except Exception as error:
        return {"unexplained": f"{type(error).__name__}: {one_line(error)}"}


def pin_package(checkout: Path) -> str:
    """Make the measured package importable from the checkout only; return the digest of its sources.

    Without a package in the checkout, return "". A copy from elsewhere, such as the installed working tree, is made
    unimportable, so that its numbers never count as this commit's.
    """
    folder = checkout.resolve() / PACKAGE
    if _origin() != folder / "__init__.py" and folder.is_dir():
        sys.path.insert(0, str(checkout.resolve()))
    if _origin() != folder / "__init__.py":
        sys.modules[PACKAGE] = None  # type: ignore[assignment]
        return ""
    return package_digest(folder)


def _origin() -> Path | None:
    """Return the file that importing the measured package would run."""
    spec = importlib.util.find_spec(PACKAGE)
    return Path(spec.origin).resolve() if spec and spec.origin else None


def package_digest(folder: Path) -> str:
    """Return the first 16 hex digits of the SHA-256 of a package's Python sources, names included."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*.py") if path.is_file()):  # an editor's lock is a dangling link
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
