"""Measurement of a class's cases in a restartable worker process; asv's `setup_cache` calls it per class and commit.

Visits to a case are spread over the run and over processes, since most of a GPU's noise is drift in time:
    round 0     every case once: correctness, peak memory, warm-up of compilers and clocks; its times are discarded
    round 1 ..  every timed case again, in another shuffled order; from the middle of the rounds on in a new process
If a worker crashes or hangs, only its current case fails.
"""

import datetime
import hashlib
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf import workloads
from perf.harness import HARNESS_VERSION
from perf.harness.case import Case
from perf.harness.journal import Journal
from perf.harness.preflight import full_disks, objection
from perf.harness.progress import Progress
from perf.harness.reach import ReachMap, is_recordable
from perf.harness.records import (
    CaseResult,
    best_ceilings,
    conditions,
    key_of,
    known_ceilings,
    read,
    read_machine,
    summarize,
)
from perf.harness.sources import Sources
from perf.harness.status import GOES_ON
from perf.harness.worker_process import WorkerProcess
from perf.workloads import PACKAGE

LASTING = (*GOES_ON, "unavailable")
"""Statuses of visits that a later run of the same session takes from file; it repeats the others."""


@dataclass(frozen=True)
class Effort:
    """The number of visits to a case and their limits."""

    name: str = "full"
    rounds: int = 4
    processes: int = 2
    limit_s: float = 180.0
    """Timeout of a visit. The first visit compiles, which usually takes seconds."""

    stop: dict[str, float] = field(default_factory=dict)
    """Fields of `clock.Stop` to override."""


FULL = Effort()
QUICK = Effort("quick", rounds=2, processes=1, stop={"max_samples": 15, "max_seconds": 0.1})


def measure(
    cases: list[Case],
    *,
    commit: str,
    checkout: Path,
    records: Path,
    effort: Effort = FULL,
    progress: Progress | None = None,
) -> list[CaseResult]:
    """Measure `cases` (all of one device kind) of the package in `checkout`; return one result per case.

    Cases that are in `records` for the same commit, machine, harness version and day are not measured again. Raises
    `SystemExit` with one line if `records` cannot be written, or `preflight` objects.
    """
    if not cases:
        return []
    progress = progress or Progress(visits_of(cases, effort), "")
    begin = time.perf_counter()
    worker = WorkerProcess(cases[0].device, checkout)
    try:
        greeting = _start(worker)
        if reason := greeting.get("unavailable"):
            return summarize(_unavailable(cases, commit, reason))
        if reason := objection([*greeting["troubles"], *full_disks(records)]):
            raise SystemExit(f"perf: {reason}")
        return _Run(cases, commit, checkout, records, effort, progress, worker, greeting).results(begin)
    finally:
        worker.stop()


class _Run:
    """One session: the visits on file, and the loop over rounds."""

    def __init__(
        self,
        cases: list[Case],
        commit: str,
        checkout: Path,
        records: Path,
        effort: Effort,
        progress: Progress,
        worker: WorkerProcess,
        greeting: dict[str, Any],
    ):
        self._cases, self._effort, self._progress, self._worker = cases, effort, progress, worker
        now = datetime.datetime.now(datetime.UTC)
        self._session = {
            "kind": "session",
            "id": now.strftime("%Y%m%dT%H%M%S.%fZ"),
            "started_at": now.isoformat(timespec="seconds"),
            "day": now.date().isoformat(),
            "harness": HARNESS_VERSION,
            "effort": effort.name,
            "machine": greeting["machine"],
            "commit": commit,
            "device": greeting["device"],
            "software": greeting["software"],
            "suite": _suite(),
        }
        machine = greeting["machine"]
        self._journal = Journal(records, machine, commit)
        known = list(read_machine(records, machine))
        self._ceilings = known_ceilings(known, greeting["device"]["name"])
        self._reach = ReachMap(known, greeting["software"])
        self._sources = Sources(checkout.resolve() / PACKAGE)
        before = read(records, machine, commit).lines
        sessions = [line for line in before if line["kind"] == "session"]
        last = max(reversed(sessions), key=lambda line: line["started_at"], default=None)
        # The last alone: of cases that an older one measured too, the newer would be shown.
        if last and conditions(last) == conditions(self._session):
            self._session = last
        else:
            self._journal.write(self._session)
        self._lines = [line for line in before if line.get("session") == self._session["id"]]
        self._order = sum(line["kind"] == "visit" for line in self._lines)
        self._greet(greeting)

    def results(self, begin: float) -> list[CaseResult]:
        """Run all rounds, then fold the journal; `begin` is the start of the run by `time.perf_counter`."""
        kept = [line for line in self._lines if line["kind"] == "visit" and line["status"] in LASTING]
        done = {(key_of(line), line["visit"]) for line in kept}
        failed = {key_of(line) for line in kept if line["status"] not in GOES_ON}
        begun_at = self._order
        for number in range(self._effort.rounds):
            order = [case for case in self._cases if number == 0 or case.timed]
            if number > 0:  # round 0 keeps the grid's order: neighbours share an oracle, and its times are discarded
                random.Random(number).shuffle(order)
            order.sort(key=lambda case: case.params.get("world_size", 1))  # starting other ranks takes 13 s
            todo = [case for case in order if (case.key, number) not in done]
            if len(todo) < len(order):
                self._progress.step(len(order) - len(todo), "already on file")
            if todo and self._starts_process(number):
                self._renew_worker()
            for case in todo:
                if case.key in failed:
                    self._progress.step(1, "")
                    continue
                line = self._visit(case, number)
                if line["status"] not in GOES_ON:
                    failed.add(case.key)
                self._progress.step(1, f"{case.key} {outcome(line)}")
        if self._order == begun_at:
            self._progress.note(
                f"{self._cases[0].benchmark}: all on file from {self._session['started_at'][:16]} UTC, so nothing is "
                "measured again"
            )
        self._journal.write(
            {
                "kind": "run",
                "session": self._session["id"],
                "benchmark": self._cases[0].benchmark,
                "cases": len(self._cases),
                "seconds": round(time.perf_counter() - begin, 2),
                "ended_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
        )
        self._journal.close()
        keys = {case.key for case in self._cases}
        lines = [line for line in self._lines if line["kind"] != "visit" or key_of(line) in keys]
        return summarize([self._session, *lines])

    def _starts_process(self, number: int) -> bool:
        """Return whether the round begins a new process: the rounds are divided evenly over the processes."""
        per_process = -(-self._effort.rounds // self._effort.processes)
        return number > 0 and number % per_process == 0

    def _visit(self, case: Case, number: int) -> dict[str, Any]:
        request = {
            "case": case.to_json(),
            "first": number == 0,
            "stop": self._effort.stop,
            "ceilings": self._ceilings,
            "watch": number == 0 and is_recordable(case) and not self._reach.holds(case, self._sources),
        }
        reply = self._worker.ask(request, self._effort.limit_s)
        if entered := reply.pop("entered", None):
            self._write(
                {
                    "kind": "reach",
                    "session": self._session["id"],
                    "benchmark": case.benchmark,
                    "params": case.params,
                    "needs": self._reach.put(case, entered, self._sources),
                }
            )
        line = {
            "kind": "visit",
            "session": self._session["id"],
            "benchmark": case.benchmark,
            "params": case.params,
            "clock": case.clock,
            "cache": case.cache,
            "timed": case.timed,
            "visit": number,
            "order": self._order,
            **reply,
        }
        self._order += 1
        self._write(line)
        if not self._worker.alive():
            self._renew_worker()
        return line

    def _renew_worker(self) -> None:
        self._worker.stop()
        self._greet(_start(self._worker))

    def _greet(self, greeting: dict[str, Any]) -> None:
        self._ceilings = best_ceilings([self._ceilings, greeting["ceilings"]])
        self._write(
            {
                "kind": "process",
                "session": self._session["id"],
                "package_digest": greeting["package_digest"],
                "started_in_s": greeting["started_in_s"],
                "ceilings": self._ceilings,
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        self._journal.write(line)
        self._lines.append(line)


def _suite() -> str:
    """Return a digest of what makes the cases: the classes and the workloads of this checkout."""
    folder = Path(workloads.__file__).parent
    files = sorted([*folder.rglob("*.py"), *(folder.parent / "benchmarks").rglob("*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def visits_of(cases: list[Case], effort: Effort) -> int:
    """Return the number of visits that these cases take."""
    return sum(effort.rounds if case.timed else 1 for case in cases)


def _start(worker: WorkerProcess) -> dict[str, Any]:
    begin = time.perf_counter()
    return worker.start() | {"started_in_s": round(time.perf_counter() - begin, 2)}


def outcome(line: dict[str, Any]) -> str:
    """Return a visit's median ("0.412 ms"), "checked" if it took no samples, or its status."""
    if line["status"] != "ok":
        return line["status"]
    samples = line.get("samples_ns")
    return f"{statistics.median(samples) * 1e-6:.4g} ms" if samples else "checked"


def _unavailable(cases: list[Case], commit: str, reason: str) -> Iterator[dict[str, Any]]:
    """Yield lines, which are not written, for cases that this machine cannot run."""
    session = dict.fromkeys(("started_at", "day", "harness", "effort", "machine"), "")
    yield {"kind": "session", "id": "", **session, "commit": commit, "device": {}, "software": {}}
    for case in cases:
        yield {
            "kind": "visit",
            "session": "",
            "benchmark": case.benchmark,
            "params": case.params,
            "clock": case.clock,
            "cache": case.cache,
            "visit": 0,
            "status": "unavailable",
            "reason": reason,
        }
