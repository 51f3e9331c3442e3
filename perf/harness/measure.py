"""One visit to one case, inside a worker process: build, check, memory, warm-up, samples. Independent of asv."""

import dataclasses
import gc
import hashlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf.harness import ceilings, device
from perf.harness.case import Cache, Case
from perf.harness.ceilings import require_floor
from perf.harness.clock import CPU_CLOCKS, Clock, Stop, visit
from perf.harness.cuda_clocks import CUDA_CLOCKS
from perf.harness.explanation import explain
from perf.harness.first_call import FirstCallClock
from perf.harness.locked_clock import unlocked
from perf.harness.memory import Leftovers, peak_memory
from perf.harness.preflight import busy_or_broken_gpus
from perf.harness.ranks import RankClock, RankPool, Ranks
from perf.harness.reach import entered
from perf.harness.records import best_ceilings
from perf.harness.status import failure, one_line
from perf.workloads import PACKAGE, build
from perf.workloads.workload import Floor, Workload


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
    """The state of one measuring process: its clock, its ceilings, the package it measures."""

    def __init__(self, device_kind: str, checkout: Path):
        self._device, self._checkout = device_kind, checkout
        self._package_digest = self._pin()
        self._missing = missing_device(device_kind)
        self._nvml: device.Nvml | None = None
        self._makers: dict[str, Callable[[], Clock]] = CPU_CLOCKS if device_kind == "cpu" else CUDA_CLOCKS
        self._clocks: dict[str, Clock] = {}
        self._leftovers = Leftovers()
        self._pool = RankPool(device_kind, checkout)
        self._ceilings: dict[str, Any] = {}
        self._l2_bytes = 0
        self._examined: tuple[Any, dict[str, Any]] = None, {}
        self._usable = True
        self._traced: set[str] = set()  # reasons of errors whose traceback was printed

    def _pin(self) -> str:
        return pin_package(self._checkout)

    def greeting(self) -> dict[str, Any]:
        """Return device, software, ceilings and the digest of the imported package."""
        if self._missing:
            return {"unavailable": self._missing}
        if self._device == "cpu":
            import torch

            torch.set_num_threads(1)  # on a busy machine a barrier between two threads waits for a time slice: 8 ms
        troubles = busy_or_broken_gpus() if self._device == "cuda" else []  # before this process uses a GPU
        identity = device.identity(self._device)
        if self._device == "cuda":
            self._nvml = device.Nvml.open(identity["uuid"])
            self._l2_bytes = identity["l2_bytes"]
        self._ceilings = ceilings.measure(self._clock(next(iter(self._makers))))
        if self._nvml and (wrong_clock := unlocked(self._nvml.sm_mhz())):  # right after a load
            troubles.append(f"GPU 0 has its {wrong_clock}: nvidia-smi -lgc locks it")
        gc.collect()
        gc.freeze()  # later collections skip the objects of torch, which take 0.1 s each
        return {
            "machine": device.machine()["machine"],
            "device": identity,
            "software": device.software(),
            "ceilings": self._ceilings,
            "package_digest": self._package_digest,
            "troubles": troubles,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Visit `request["case"]`; with `first`, also check its output and measure its memory, once for all clocks.

        `stop` overrides fields of `clock.Stop`; `ceilings` are the best rates of other processes; with `watch`, a first
        visit also records what the case runs (`reach.entered`). Never raises: an error becomes the visit's status and
        reason.
        """
        case = Case(**request["case"])
        stop = Stop(**request["stop"])
        self._ceilings = best_ceilings([self._ceilings, request["ceilings"]])
        self._leftovers.release()
        return self._with_status(lambda: self._visit(case, stop, request["first"], request.get("watch", False)))

    def usable(self) -> bool:
        """Return False after an error that broke the CUDA context: the next case needs a new process."""
        return self._usable

    def _with_status(self, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of `do` with status and reason; an error becomes the status and reason."""
        try:
            return {"status": "ok", "reason": "", **do()}
        except (Exception, SystemExit) as error:  # the measured code may call sys.exit
            return self._failure(error)

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
                self._examined = same_but_for_clock, self._examine(case, make, ranks, spent)
            reply |= self._examined[1]
            if watch:
                reply |= self._watch(make)
                spent.on("watch")
        if not case.timed:
            return reply | {"spent_ms": spent.ms}
        work = make()
        spent.on("build")
        reply["state"] = clock.warm_up(work, self._nvml.state if self._nvml else None)
        spent.on("warm_up")
        if not (first and case.clock == "first_call"):  # such a sample takes seconds
            reply |= self._sample(case, clock, work, stop)
        spent.on("sample")
        return reply | {"spent_ms": spent.ms}

    def _examine(self, case: Case, make: Callable[[], Workload], ranks: Ranks | None, spent: Spent) -> dict[str, Any]:
        """Measure what does not depend on the clock: the output's error, facts, kernels, peak memory."""
        work = make()
        spent.on("build")
        work.prepare()
        work.run()
        self._synchronize()
        spent.on("first_run")
        examined = {"error": work.check(), "floor": vars(work.floor)}
        spent.on("check")
        if facts := work.facts():
            examined["facts"] = facts
        if ranks:
            examined |= ranks.memory()
            spent.on("memory")
        elif self._device == "cuda" and case.clock != "first_call":
            examined |= self._explain(work)
            spent.on("explain")
            del work  # two may not fit
            examined |= peak_memory(make, self._leftovers)
            self._leftovers.release()  # a compiled model is part of a cycle, and two may not fit
            spent.on("memory")
        return examined

    def _watch(self, make: Callable[[], Workload]) -> dict[str, Any]:
        """Record what the case runs. An error fails nothing: a case without a record is measured whatever changes."""
        try:
            return {"entered": entered(make)}
        except Exception as error:
            print(f"not recorded what this case runs: {one_line(error)}", file=sys.stderr)
            return {}
        finally:
            self._leftovers.release()

    def _explain(self, work: Workload) -> dict[str, Any]:
        """Explain the work; an error here does not fail the case."""
        try:
            return explain(work)
        except Exception as error:
            return {"unexplained": f"{type(error).__name__}: {one_line(error)}"}

    def _sample(self, case: Case, clock: Clock, work: Workload, stop: Stop) -> dict[str, Any]:
        throttling = self._nvml.throttling if self._nvml else lambda: []
        taken = visit(clock, work, case.cache, stop, throttling)
        if work.without is None:
            self._hold_samples(taken.samples_s, work.floor, case.cache)
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
        return self._clock(case.clock)

    def _clock(self, name: str) -> Clock:
        if name not in self._clocks:
            self._clocks[name] = self.new_clock(name)
        return self._clocks[name]

    def new_clock(self, name: str) -> Clock:
        """Return a clock of its own for an arm. Raises `ValueError` for a clock that this device does not have."""
        if name not in self._makers:
            raise ValueError(f"clock={name!r} was given; allowed on {self._device}: {', '.join(self._makers)}")
        return self._makers[name]()

    def _synchronize(self) -> None:
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()

    def _hold_samples(self, samples: list[float], floor: Floor, cache: Cache) -> None:
        """Raise `TooFast` for a sample below the floor, after measuring the violated ceilings again.

        The device may have been slow when they were measured. Later samples use the higher ceilings too.
        """
        slack = ceilings.SLACK if self._device == "cuda" else ceilings.CPU_SLACK
        fastest_s = min(samples)
        for rest_s in ceilings.RESTS_S:
            kinds = ceilings.undercut(fastest_s, floor, self._ceilings, cache, self._l2_bytes, slack)
            if not kinds:
                return
            time.sleep(rest_s)
            if not self._measure_again(kinds):
                break
        require_floor(fastest_s, floor, self._ceilings, cache, self._l2_bytes, slack)

    def _measure_again(self, kinds: set[str]) -> bool:
        """Measure the ceilings of these kinds again and keep the better ones; return False if memory is short."""
        import torch

        try:
            measured = ceilings.measure(self._clock(next(iter(self._makers))), kinds)
        except torch.OutOfMemoryError:  # the work's own tensors are still allocated
            print("no memory to measure the ceilings again", file=sys.stderr)
            return False
        self._ceilings = best_ceilings([self._ceilings, measured])
        return True

    def _failure(self, error: BaseException) -> dict[str, Any]:
        import torch

        reply = failure(error)
        if reply["status"] == "error":
            if reply["reason"] not in self._traced:
                traceback.print_exception(error)
            self._traced.add(reply["reason"])
            if self._device == "cuda":
                try:
                    torch.cuda.synchronize()
                except RuntimeError:
                    self._usable = False
        return reply


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


def missing_device(kind: str) -> str:
    """Return the reason why this machine cannot run cases of this kind; "" if it can."""
    if kind == "cuda" and not device.sees_gpus():
        return "needs a CUDA GPU; torch {torch} on Python {python} finds none".format(**device.software())
    return ""
