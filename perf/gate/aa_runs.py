"""Read A/A runs from the records (self-tests, and gates of a commit against itself) and derive per-case margins.

A margin is the smallest change of a case that means anything. A class calls 1 % negligible because it does not know its
cases; twelve processes that alternate both arms measure a kernel of 1 ms to 0.05 %. The margin is twice the change that
identical code has shown so far, at the far end of its 95 % confidence interval, and at least `MIN_MARGIN`. Every A/A
run on record whose controls held counts, so a run that contradicts a margin widens it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perf.gate.report import RECORDS, Ended, Unreadable, read_report, read_self_test
from perf.gate.verdicts import Judgement, Report, Visits, Word
from perf.harness.intervals import of_mean

MIN_MARGIN = 0.003
"""Minimum margin, as a share of the time."""

SAFETY = 2.0
"""Factor between the change that identical code has shown and the margin, since later runs may show more."""

MIN_BASE_S = 50e-6
"""Time below which a case keeps its class's negligible share."""

MIN_PROCESSES = 3
"""Minimum number of processes behind a margin."""


@dataclass(frozen=True)
class AARun:
    """One run of identical code whose controls held."""

    when: str
    """File name in UTC: 20261122T100207Z."""

    visits: Visits
    base_s: dict[str, float]
    words: dict[str, Word]
    """Verdicts on times, by case key."""

    seconds: float
    """Wall time of the run."""

    def processes(self, key: str) -> list[list[float]]:
        """Group the case's changes by process."""
        changes: dict[int, list[float]] = {}
        for process, change in self.visits.get(key, ()):
            changes.setdefault(process, []).append(change)
        return list(changes.values())


def recorded(machine: str, records: Path | None = None) -> list[AARun]:
    """Read the A/A runs of a machine, oldest first; skip unreadable files, which the trust page lists."""
    folder = (records or RECORDS) / machine
    runs = []
    for path in sorted([*folder.glob("gate/*.json"), *folder.glob("self-test/*.json")], key=lambda path: path.name):
        try:
            run = _aa_run(path)
        except Unreadable:
            continue
        if run:
            runs.append(run)
    return runs


def _aa_run(path: Path) -> AARun | None:
    run: Report | Ended
    if path.parent.name == "gate":
        run = read_report(path)
        if not run.is_of_identical_code or run.head_software:
            return None
        judged: Judgement | Ended = run.judgement
    else:
        identical = [part for part in read_self_test(path).parts if part.injection is None]
        if not identical:
            return None
        run = judged = identical[0]
    if judged.contaminated or not run.visits:
        return None
    times = {verdict.key: verdict for verdict in judged.verdicts if verdict.quantity == "time"}
    return AARun(
        path.stem,
        run.visits,
        {key: verdict.base for key, verdict in times.items() if verdict.base},
        {key: verdict.word for key, verdict in times.items() if verdict.base},
        run.seconds,
    )


def seconds_per_process(runs: Sequence[AARun]) -> float | None:
    """Return the mean seconds of one case in one process, its share of the start-up included."""
    count = sum(len(run.processes(key)) for run in runs for key in run.visits)
    return sum(run.seconds for run in runs) / count if count else None


def margins(runs: Iterable[AARun]) -> dict[str, float]:
    """Return each case's margin as a share of its time."""
    return {key: margin(float(np.expm1(change))) for key, change in moved(runs).items()}


def moved(runs: Iterable[AARun]) -> dict[str, float]:
    """Return the `max_change` of each case over the process means of all runs, as a log ratio.

    Leaves out cases with fewer than `MIN_PROCESSES` processes.
    """
    means: dict[str, list[float]] = {}
    for run in runs:
        for key in run.visits:
            means.setdefault(key, []).extend(float(np.mean(visits)) for visits in run.processes(key))
    return {key: max_change(of) for key, of in means.items() if len(of) >= MIN_PROCESSES}


def max_change(means: Sequence[float]) -> float:
    """Return the far end of the 95 % confidence interval of the mean, as an absolute value."""
    mean = of_mean(means)
    return abs(mean.value) + mean.half


def margin(share: Any) -> Any:
    """Return the margin of cases whose identical code moved by up to `share`."""
    return np.maximum(MIN_MARGIN, SAFETY * share)
