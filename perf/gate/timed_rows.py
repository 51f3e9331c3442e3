"""Turn the evidence of a timed case into what the statistics need: changes by process, medians, a floor."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf import units
from perf.gate import inference, variance
from perf.gate.aa_runs import MIN_BASE_S
from perf.gate.evidence import DEVICE_CLOCKS, Evidence, PairedVisit
from perf.gate.inference import ChangeEstimate
from perf.gate.variance import Floats
from perf.gate.verdicts import UNMEASURED
from perf.harness.case import ARMS

CLOCK_SHIFT = 0.005
"""Difference of the arms' SM clocks above which the verdict's reason mentions it."""

MAX_RATIO = 1000.0
"""Ratio of the arms above which no number is shown."""


@dataclass(frozen=True)
class TimedRow:
    """One case with usable times of both arms."""

    evidence: Evidence
    changes: dict[int, list[float]]
    """Changes of the visits of each process: log ratios, or shares of the whole for a difference."""

    base_s: float
    head_s: float
    whole_s: float | None
    """Median seconds of the step that a difference is a share of; None for a time."""

    floor: float
    note: str

    def head_at(self, change: float | None) -> float:
        """Return the head's time that belongs to a change of `shown`: the base's median and that change.

        The medians of both arms, each over samples of its own, can contradict the change of the paired samples.
        """
        if change is None:
            return self.head_s
        return self.base_s * (1 + change) if self.whole_s is None else self.base_s + self.whole_s * change

    def shown(self, change: float) -> float | None:
        """Convert a change to head / base - 1, or to a share of the whole; None beyond `MAX_RATIO`."""
        if not change <= np.log(MAX_RATIO):
            return None
        return float(np.expm1(change)) if self.whole_s is None else change


def timed_rows(evidence: Sequence[Evidence]) -> list[TimedRow]:
    """Return a row for each case that `has_times`, in order."""
    return [_row(case) for case in evidence if has_times(case)]


def has_times(case: Evidence) -> bool:
    """Whether both arms have at least one usable visit and no trouble."""
    return not case.trouble and case.is_timed and set(case.outcomes) == set(ARMS) and any(map(_is_usable, case.visits))


def why_no_times(case: Evidence) -> str:
    """Explain why a case has no times, or too few."""
    if case.trouble:
        return case.trouble
    if missing := [arm for arm in ARMS if arm not in case.outcomes]:
        return f"{UNMEASURED}: {' and '.join(missing)}"
    outcomes = [(arm, case.outcomes[arm]) for arm in ARMS]
    failures = {arm: outcome.failure for arm, outcome in outcomes if not outcome.works}
    if len(failures) == len(ARMS) and len(set(failures.values())) == 1:
        return failures[ARMS[0]]
    if failures:
        return "; ".join(f"{arm}: {failure}" for arm, failure in failures.items())
    if throttled := [f"{arm}: {outcome.reason}" for arm, outcome in outcomes if outcome.status == "throttled"]:
        return "; ".join(throttled)
    if dropped := sum(visit.throttled for visit in case.visits):
        return f"the device throttled during all {dropped} pairs of samples"
    if case.visits:
        return f"none of {len(case.visits)} visits is usable: times not above 0, or unpaired samples"
    return "no times were taken"


def estimate(rows: Sequence[TimedRow], processes: int | None = None) -> ChangeEstimate:
    """Estimate the change of each row from its first `processes` processes, or from all."""
    clocks = np.array([row.evidence.case.clock for row in rows])
    return inference.estimate(variance.summarize(_table(rows, processes)), clocks)


def _table(rows: Sequence[TimedRow], processes: int | None) -> Floats:
    """Lay out changes as [rows, processes, visits], padded with NaN."""
    taken = [[v for number, v in row.changes.items() if processes is None or number < processes] for row in rows]
    most_processes = max((len(row) for row in taken), default=0)
    most_visits = max((len(v) for row in taken for v in row), default=0)
    table = np.full((len(rows), max(most_processes, 1), max(most_visits, 1)), np.nan)
    for i, row in enumerate(taken):
        for j, values in enumerate(row):
            table[i, j, : len(values)] = values
    return table


def _is_usable(visit: PairedVisit) -> bool:
    """Whether every pair has two finite times above 0, or two finite values for a difference."""
    samples = np.asarray(visit.base_s + visit.head_s, dtype=float)
    if not len(visit.base_s) or len(visit.base_s) != len(visit.head_s) or not np.isfinite(samples).all():
        return False
    return bool(visit.whole_s is not None and visit.whole_s > 0) or bool((samples > 0).all())


def _row(case: Evidence) -> TimedRow:
    visits = [visit for visit in case.visits if _is_usable(visit)]
    wholes = [visit.whole_s for visit in visits if visit.whole_s is not None]
    whole_s = float(np.median(wholes)) if wholes else None
    changes: dict[int, list[float]] = {}
    for visit in visits:
        changes.setdefault(visit.process, []).append(
            variance.visit_change(visit.base_s, visit.head_s)
            if whole_s is None
            else variance.visit_difference(visit.base_s, visit.head_s) / whole_s
        )
    base_s, head_s = (float(np.median([np.median(getattr(v, f"{arm}_s")) for v in visits])) for arm in ARMS)
    if whole_s is None:
        floor, notes = _floor(case, base_s), [_clock_note(case, visits)]
    else:
        floor = max(case.negligible[0], case.negligible[1] / whole_s)
        notes = [f"a difference, judged as a share of the enclosing step of {units.seconds(whole_s)}"]
    if unusable := len(case.visits) - len(visits):
        notes.append(f"{unusable} of {len(case.visits)} visits dropped: times not above 0, or unpaired samples")
    return TimedRow(case, changes, base_s, head_s, whole_s, floor, "; ".join(filter(None, notes)))


def _floor(case: Evidence, base_s: float) -> float:
    """Return the negligible log ratio: the class's, or the case's own margin if smaller and its kernels are long."""
    floor = inference.floor_of(case.negligible, base_s)
    if case.margin is None or case.case.clock not in DEVICE_CLOCKS or base_s < MIN_BASE_S:
        return floor
    return min(floor, float(np.log1p(case.margin)))


def _clock_note(case: Evidence, visits: Sequence[PairedVisit]) -> str:
    """Report arms that ran at different SM clocks. The verdict stays one on seconds, since users wait in seconds."""
    shifts = [np.log(visit.head_mhz / visit.base_mhz) for visit in visits if visit.base_mhz and visit.head_mhz]
    if not shifts or case.case.clock not in DEVICE_CLOCKS or abs(mean := float(np.mean(shifts))) <= CLOCK_SHIFT:
        return ""
    return f"head's SM clock differs by {percent(mean)} from base's, which explains {percent(-mean)} of the time"


def percent(change: float) -> str:
    """Format a log ratio: "+2.0 %"."""
    return f"{100 * np.expm1(change):+.1f} %"
