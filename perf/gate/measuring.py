"""Gather a gate's evidence: process after process, each with both commits, until no row is open."""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from perf.gate.evidence import Evidence, Outcome, PairedVisit
from perf.harness.case import ARMS, ArmName
from perf.harness.comparison import Looks, compare
from perf.harness.preflight import objection
from perf.harness.records import best_ceilings
from perf.harness.status import GOES_ON
from perf.harness.two_processes import AlternatingProcesses
from perf.harness.worker_process import WorkerProcess

VISITS = 6
"""Number of visits of each process to each row. Where visits scatter by 0.7 %, 3 show half of all slow-downs of 2 %,
and 6 show 95 % (`python -m perf simulate`)."""

LIMIT_S = 180.0
"""After which a visit has hung."""

Process = WorkerProcess | AlternatingProcesses


class Measuring:
    """One run: `until_settled`, then read `evidence`, `greeting` and where the time went.

    With `pythons`, executables of two environments, the arms take turns in a process each.
    """

    def __init__(
        self,
        evidence: Sequence[Evidence],
        checkouts: tuple[Path, Path],
        *,
        pythons: tuple[str, str] | None = None,
        budget_s: float,
        looks: Sequence[int],
        is_open: Callable[[Sequence[Evidence]], Sequence[Evidence]],
        step: Callable[[int, str], None] = lambda count, text: None,
        injection: dict[str, Any] | None = None,
        visits: int = VISITS,
        limit_s: float = LIMIT_S,
    ):
        self.evidence = list(evidence)
        self.greeting: dict[str, Any] = {}
        self.processes = 0
        self.spent_s: Counter[str] = Counter()
        self._looks, self._is_open, self._step = tuple(looks), is_open, step
        self._visits, self._limit_s, self._injection = visits, limit_s, injection
        self._ceilings: dict[str, Any] = {}
        self._deadline = time.monotonic() + budget_s
        self._visit_s: dict[str, float] = {}
        self._row_s: dict[str, float] = defaultdict(float)
        self._start_s = 0.0
        self._workers: dict[str, Process] = {
            device: AlternatingProcesses(device, checkouts, pythons) if pythons else WorkerProcess(device, *checkouts)
            for device in {one.case.device for one in evidence}
        }

    def until_settled(self) -> None:
        """Measure every row in as many processes as the first look needs, then the open ones, look by look.

        No visit begins that would end after the budget, as far as the row's last one tells; what was measured until
        then stays. Where the budget is too short for all open rows, the first of them get all processes. Raises
        `click.ClickException` with one line before the first visit if `preflight` objects.
        """
        until = Looks(
            self._looks,
            still_open=lambda evidence: self._affordable(self._is_open(evidence)),
            can_go_on=lambda rows: _any_open(rows) and not self._is_over(),
        )
        try:
            for _ in compare(self.evidence, until, self._one_process):
                pass
        finally:
            for worker in self._workers.values():
                worker.stop()

    def _one_process(self, rows: Sequence[Evidence], number: int) -> Iterator[None]:
        """Visit these rows in a fresh process of each device."""
        self.processes = number + 1
        begin = time.monotonic()
        self._row_s = defaultdict(float)
        for device, worker in self._workers.items():
            mine = [one for one in rows if one.case.device == device and _goes_on(one) and self._has_time_for(one)]
            if not mine:
                continue
            worker.stop()
            if reason := self._greet(worker):
                for one in mine:
                    _fail(one, dict.fromkeys(ARMS, Outcome("unavailable", reason)), reason)
                continue
            if number == 0 and (reason := objection(self.greeting["troubles"])):
                raise click.ClickException(reason)
            for visit in range(self._visits):
                order = list(mine)
                if number or visit:  # the first keeps the grid's order: neighbours share an oracle
                    random.Random(f"{number} {visit}").shuffle(order)
                order.sort(key=lambda one: one.case.params.get("world_size", 1))  # as many ranks stay who they are
                for one in order:
                    if _goes_on(one) and self._has_time_for(one):
                        visit_begin = time.monotonic()
                        self._visit(worker, one, number, visit)
                        self._visit_s[one.case.key] = time.monotonic() - visit_begin
                        self._row_s[one.case.key] += self._visit_s[one.case.key]
                        self._step(1, one.case.key)
                        yield
        self._start_s = time.monotonic() - begin - sum(self._row_s.values())

    def _greet(self, worker: Process) -> str:
        """Start the process; returns why it can measure nothing, "" if it can."""
        greeting = worker.start()
        if reason := greeting.get("unavailable"):
            return str(reason)
        self.greeting = greeting
        self._ceilings = best_ceilings([self._ceilings, greeting["ceilings"]])
        return ""

    def _visit(self, worker: Process, one: Evidence, process: int, visit: int) -> None:
        first, weighs_again = not one.outcomes, visit == 0 and one.more_peaks_wanted
        arms = list(ARMS) if (process + visit) % 2 == 0 else list(reversed(ARMS))  # who is built, and sampled, first
        reply = self._ask(worker, one, arms, first or weighs_again)
        if reply["status"] in ("crashed", "hung"):
            one.trouble = f"both commits side by side: {reply['reason']}"
            self._ask_apart(worker, one)
            return
        self.spent_s.update({what: ms * 1e-3 for what, ms in reply.get("spent_ms", {}).items()})
        if first and not worker.alive():  # one arm left the GPU's context unusable, and the other paid for it
            self._ask_apart(worker, one)
            return
        bad = [] if first else [arm for arm in ARMS if reply[arm]["status"] != "ok"]
        if first:
            one.outcomes = {arm: Outcome.of(reply[arm]) for arm in ARMS}
            one.differences = tuple((name, found, allowed) for name, found, allowed in reply.get("differences", ()))
        elif bad:
            one.trouble = f"{bad[0]} in a later visit: {reply[bad[0]]['reason']}"
        elif weighs_again:
            one.more_peaks.append((float(reply["base"]["peak_bytes"]), float(reply["head"]["peak_bytes"])))
        if reply.get("base_ns"):
            one.visits.append(_paired_visit(reply, process, visit))
        elif reply["status"] != "ok" or reply.get("throttled"):
            one.trouble = reply["reason"] or "the GPU slowed itself down during every sample of a visit"
        if bad or reply["status"] not in GOES_ON:
            self._ask_apart(worker, one)
        elif not worker.alive():
            worker.stop()
            self._greet(worker)

    def _ask_apart(self, worker: Process, one: Evidence) -> None:
        """Ask each arm alone, in a process of its own: one of them has ended a visit of both by a crash or an error."""
        apart: dict[ArmName, Outcome] = {}
        for arm in ARMS:
            worker.stop()
            if reason := self._greet(worker):
                apart = dict.fromkeys(ARMS, Outcome("unavailable", reason))
                break
            reply = self._ask(worker, one, [arm], True)
            apart[arm] = Outcome.of(reply.get(arm, reply) if reply["status"] == "ok" else reply)
        if any(outcome.works for outcome in apart.values()):
            one.outcomes = apart
        else:
            _fail(one, apart, apart["head"].failure)
        worker.stop()
        self._greet(worker)

    def _ask(self, worker: Process, one: Evidence, arms: list[ArmName], first: bool) -> dict[str, Any]:
        request = {
            "case": one.case.to_json(),
            "arms": arms,
            "first": first,
            "ceilings": self._ceilings,
            "injection": None if one.is_control else self._injection,
        }
        return worker.ask(request, self._limit_s)

    def _affordable(self, rows: Sequence[Evidence]) -> Sequence[Evidence]:
        """Select the open rows, in their order, that can have all processes within the budget; one at least.

        A little more of each would leave none of many slower rows confirmed. A row that was left out once stays out:
        it cannot have all processes any more. Controls stay.
        """
        rows = [one for one in rows if one.case.key in self._row_s] or rows
        processes = self._looks[-1] - self.processes
        controls = [one for one in rows if one.is_control]
        judged = [one for one in rows if not one.is_control]
        process_s = self._start_s + sum(self._row_s[one.case.key] for one in controls)
        left_s = self._deadline - time.monotonic()
        affordable = 0
        for one in judged:
            process_s += self._row_s[one.case.key]
            affordable += processes * process_s <= left_s
        return judged[: max(affordable, 1)] + controls if judged else rows

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def _has_time_for(self, one: Evidence) -> bool:
        return time.monotonic() + self._visit_s.get(one.case.key, 0.0) < self._deadline


def _fail(one: Evidence, outcomes: dict[ArmName, Outcome], reason: str) -> None:
    """Both arms failed: the outcomes of a row without any; a row that was measured keeps its own, and has trouble."""
    if one.outcomes:
        one.trouble = one.trouble or reason
    else:
        one.outcomes = outcomes


def _any_open(rows: Sequence[Evidence]) -> bool:
    """Controls are measured for the sake of the others."""
    return any(_goes_on(one) and not one.is_control for one in rows)


def _goes_on(one: Evidence) -> bool:
    """Return whether another visit can add anything: both arms are good so far, and no visit failed."""
    good = all(outcome.status == "ok" for outcome in one.outcomes.values())
    return good and not one.trouble and (one.case.timed or not one.outcomes or one.more_peaks_wanted)


def _paired_visit(reply: dict[str, Any], process: int, visit: int) -> PairedVisit:
    return PairedVisit(
        process=process,
        visit=visit,
        base_s=tuple(ns * 1e-9 for ns in reply["base_ns"]),
        head_s=tuple(ns * 1e-9 for ns in reply["head_ns"]),
        base_mhz=reply.get("base_mhz"),
        head_mhz=reply.get("head_mhz"),
        whole_s=reply["whole_ns"] * 1e-9 if reply.get("whole_ns") else None,
        throttled=reply["throttled"],
    )
