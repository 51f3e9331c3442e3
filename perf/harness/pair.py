"""Visit a case of two commits at once, in one process: build both, check both, then sample them in turn.

Drift in time is most of the noise of a GPU. Two arms that alternate sample by sample see the same drift, so their ratio
is known ten times better than either time (`perf.studies.noise`).
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from perf import workloads
from perf.harness.case import ARMS, Case
from perf.harness.clock import Clock
from perf.harness.comparison import Comparer, Rounds, paired
from perf.harness.first_call import FirstCallClock
from perf.harness.injection import Injection
from perf.harness.instruments import Instruments
from perf.harness.measure import Spent, examine, package_digest
from perf.harness.ranks import RankClock, RankPool, Ranks
from perf.harness.settings import Settings
from perf.harness.two_checkouts import load
from perf.workloads import PACKAGE
from perf.workloads.workload import Workload

PAIRS = Rounds()


class PairWorker:
    """The process that holds two checkouts: {"base": folder, "head": folder}."""

    def __init__(self, device_kind: str, checkouts: dict[str, Path]):
        self._checkouts = checkouts
        self._package_digest = self._pin()
        self.instruments = Instruments(device_kind)
        self._comparer = Comparer(self.instruments)
        self._pools = {arm: RankPool(device_kind, checkout) for arm, checkout in checkouts.items()}
        self._results: dict[str, dict[str, Any]] = {}
        self._rounding = 0.0
        self._settings = Settings()

    def _pin(self) -> str:
        digests = []
        for arm, checkout in self._checkouts.items():
            found = load(checkout.resolve(), _name_of(arm))
            digests.append(package_digest(checkout / PACKAGE) if found else "")
        return " ".join(digests)

    def greeting(self) -> dict[str, Any]:
        """Return device, software, ceilings and the digests of both packages."""
        return self.instruments.greeting(self._package_digest)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Visit `request["case"]` of `request["arms"]`, in this order; of both, take pairs of samples.

        `first`: check the output, take the peak memory and the kernels of each arm, alone. `injection`, if any, slows
        the head down by a known share (see `injection`). Returns the reply of each arm under its name, and of two good
        arms `base_ns` and `head_ns`, pair by pair; with `first`, `differences` between their results, as `_differences`
        has them; `spent_ms` as `Spent` has it. One arm is timed too, to learn whether it can be. Never raises.
        """
        case, arms = Case(**request["case"]), request["arms"]
        injection = Injection(**request["injection"]) if request.get("injection") else None
        self.instruments.merge_ceilings(request["ceilings"])
        self._results = {}
        spent = Spent()
        reply: dict[str, Any] = {"spent_ms": spent.ms}
        for arm in arms:
            injected = injection if arm == "head" else None
            reply[arm] = self._with_status(
                lambda arm=arm, injected=injected: self._look(case, arm, request["first"], injected, spent)  # type: ignore[misc]
            )
            self.instruments.leftovers.release()
        if request["first"] and all(reply[arm]["status"] == "ok" for arm in arms):
            reply["differences"] = self._differences()
            spent.on("check")
        if not case.timed or any(reply[arm]["status"] != "ok" for arm in arms):
            return reply | {"status": "ok", "reason": ""}
        taken = self._with_status(lambda: self._take_turns(case, arms, injection, spent))
        if taken["status"] == "out_of_memory" and len(arms) > 1:  # each alone fits
            self.instruments.leftovers.release()
            taken = self._with_status(lambda: self._one_after_the_other(case, arms, injection, spent))
        return reply | taken

    def _with_status(self, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of `do` with status and a reason in which the package has its own name."""
        reply = self.instruments.with_status(do)
        for arm in self._checkouts:
            reply["reason"] = reply["reason"].replace(_name_of(arm), PACKAGE)
        return reply

    def _look(self, case: Case, arm: str, first: bool, injection: Injection | None, spent: Spent) -> dict[str, Any]:
        """Examine one arm alone, on the first visit only: its error, peak memory and kernels."""
        if not first:
            return {}
        with self._arm(case, arm) as ranks:
            return examine(self.instruments, case, self._maker(case, arm, ranks, injection), ranks, spent)

    def _differences(self) -> list[tuple[str, float, float]]:
        """Results of two good arms that differ by more than rounding: name, by which share of base's norm, allowed.

        Both have passed the check, which knows what is right; this says that a commit computes something else.
        """
        results, self._results = self._results, {}
        base, head = (results.get(arm, {}) for arm in ARMS)
        found = []
        for name in base.keys() & head.keys():
            ours, theirs = (one[name].to(self.instruments.device).double() for one in (base, head))
            difference = float((theirs - ours).norm() / ours.norm())
            if not difference <= self._rounding:
                found.append((name, difference, self._rounding))
        return sorted(found)

    def _take_turns(self, case: Case, arms: Sequence[str], injection: Injection | None, spent: Spent) -> dict[str, Any]:
        """Build both arms, warm them up and sample them: A B B A."""
        held = {arm: self._hold(case, arm, injection if arm == "head" else None, spent) for arm in arms}
        count = 2 if case.clock == "first_call" else PAIRS.number(sum(clock.call_s for clock, _ in held.values()))
        turns = self._comparer.sample_in_turn(held, case.cache, count)
        spent.on("sample")
        found: dict[str, Any] = {"throttled": len(turns.slow)}
        wholes = [clock.whole_s for clock, _ in held.values() if isinstance(clock, RankClock) and clock.whole_s]
        if wholes:
            found["whole_ns"] = round(statistics.fmean(wholes) * 1e9)
        for arm in arms:
            found |= {f"{arm}_ns": _nanoseconds(turns.samples_s[arm]), f"{arm}_mhz": turns.mhz[arm]}
        return found

    def _one_after_the_other(
        self, case: Case, arms: Sequence[str], injection: Injection | None, spent: Spent
    ) -> dict[str, Any]:
        """Sample arms that do not fit into memory together: A, B, B, A, half of an arm's samples at each stay."""
        stays: dict[str, list[list[int]]] = {arm: [] for arm in arms}
        half = throttled = 0
        for arm in (*arms, *reversed(arms)):
            clock, work = self._hold(case, arm, injection if arm == "head" else None, spent)
            half = half or max(1, PAIRS.number(2 * clock.call_s) // 2)
            turns = self._comparer.sample_in_turn({arm: (clock, work)}, case.cache, half)
            spent.on("sample")
            stays[arm].append(_nanoseconds(turns.samples_s[arm]))
            throttled += len(turns.slow)
            del work
            self.instruments.leftovers.release()
        return {"throttled": throttled} | paired(stays)

    def _hold(self, case: Case, arm: str, injection: Injection | None, spent: Spent) -> tuple[Clock, Workload]:
        """Build and warm up one arm, with the requested slow-down."""
        with self._arm(case, arm) as ranks:
            work = self._maker(case, arm, ranks, injection)()
        spent.on("build")
        clock = self._new_clock(case, arm, ranks)
        clock.warm_up(work)
        if injection and injection.kind != "memory":
            seconds = statistics.median(clock.batch(work, case.cache, 5))
            if ranks:
                ranks.slow_down(seconds)
            else:
                work = injection.slowed(work, seconds, self.instruments.device)
            clock.warm_up(work)
        spent.on("warm_up")
        return clock, work

    @contextmanager
    def _arm(self, case: Case, arm: str) -> Iterator[Ranks | None]:
        """Meanwhile this arm's package is the measured one; the arm's processes, if the case has several ranks."""
        with self._current(arm):
            yield self._pools[arm].of(case.params["world_size"]) if case.clock == "ranks" else None

    @contextmanager
    def _current(self, arm: str, settings: str = "") -> Iterator[None]:
        """Meanwhile imports of the package are of this arm's own.

        The process has these settings, and the arm's from the first use of the package on.
        """
        self._settings.switch_to(settings)
        with workloads.importing(_name_of(arm), partial(self._settings.switch_to, arm)):
            yield

    def _maker(self, case: Case, arm: str, ranks: Ranks | None, injection: Injection | None) -> Callable[[], Workload]:
        """Makes the arm's work, which goes on in its own package wherever it is called from."""

        def make() -> Workload:
            if ranks:
                return self._belonging(ranks.build(case, injection), arm)
            work = self._compared(workloads.build(case.workload, case.params, case.device), arm)
            return self._belonging(injection.enlarged(work, self.instruments.device) if injection else work, arm)

        return make

    def _belonging(self, work: Workload, arm: str) -> Workload:
        """`work`, all of whose calls see the arm's package and, if they use it, settings.

        This costs nothing inside the timed region.
        """
        prepare, check, settings = work.prepare, work.check, self._settings.current

        def use() -> None:
            nonlocal settings
            settings = arm
            self._settings.switch_to(arm)

        def set_then_prepare() -> None:
            self._settings.switch_to(settings)
            workloads.import_as(_name_of(arm), use)
            prepare()

        def check_there() -> float:
            with self._current(arm, settings):
                return check()

        return dataclasses.replace(work, prepare=set_then_prepare, check=check_there)

    def _compared(self, work: Workload, arm: str) -> Workload:
        """`work`, whose check leaves its results in `_results`, in the host's memory."""

        def check_then_keep() -> float:
            error = work.check()
            self._results[arm] = {name: tensor.cpu() for name, tensor in work.results().items()}
            self._rounding = work.rounding
            return error

        return dataclasses.replace(work, check=check_then_keep)

    def _new_clock(self, case: Case, arm: str, ranks: Ranks | None) -> Clock:
        """Return a clock of the arm's own: a clock knows the work that it has warmed up."""
        if ranks:
            return RankClock(ranks)
        if case.clock == "first_call":
            return FirstCallClock(case, self._checkouts[arm])
        return self.instruments.new_clock(case.clock)


def _nanoseconds(samples_s: Sequence[float]) -> list[int]:
    return [round(sample * 1e9) for sample in samples_s]


def _name_of(arm: str) -> str:
    return f"{PACKAGE}_{arm}"
