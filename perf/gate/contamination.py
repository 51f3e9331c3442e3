"""Detect that the arms differed in more than their code, which invalidates every time of a report."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from perf.gate import inference
from perf.gate.evidence import DEVICE_CLOCKS, Evidence
from perf.gate.inference import ChangeEstimate
from perf.gate.timed_rows import TimedRow, estimate, has_times, percent, why_no_times
from perf.gate.variance import Floats
from perf.gate.verdicts import LOOKS

MIN_BUSY = 0.8
"""Minimum share of an event-timed call that kernels must fill; below it the host contributes to the time."""

RARE = 0.01
"""One-sided probability at which a row of identical code moves beyond its floor."""

TOO_RARE = 0.001
"""Probability of the number of moved rows below which chance is ruled out."""


def contamination(rows: Sequence[TimedRow]) -> str:
    """Describe controls and rows of unchanged machine code that moved between the arms; "" if they held."""
    if not rows:
        return ""
    changes, floors = estimate(rows), np.array([row.floor for row in rows])
    is_control = np.array([row.evidence.is_control for row in rows], dtype=bool)
    controls = [row for row in rows if row.evidence.is_control]
    signs = (
        _moved(controls, changes.of(is_control), floors[is_control]),
        _moved_together(changes.of(is_control), floors[is_control]),
        _same_code_moved(rows, changes, floors),
    )
    return "; ".join(filter(None, signs))


def missing_controls(evidence: Sequence[Evidence]) -> str:
    """List controls without a time, with reasons; "" if all have one or nothing else is timed."""
    if not any(case.case.timed and not case.is_control for case in evidence):
        return ""
    controls = [case for case in evidence if case.is_control and case.case.timed]
    if not controls:
        return "no control was measured"
    by_reason: dict[str, list[str]] = {}
    for case in controls:
        if not has_times(case):
            by_reason.setdefault(why_no_times(case), []).append(case.case.key)
    return "; ".join(f"{_some(keys)}: {reason}" for reason, keys in by_reason.items())


def _some(keys: Sequence[str]) -> str:
    """Name the first two keys and count the others."""
    return ", ".join(keys[:2]) + (f" and {len(keys) - 2} more" if len(keys) > 2 else "")


def _moved(controls: Sequence[TimedRow], changes: ChangeEstimate, floors: Floats) -> str:
    """Describe controls beyond their floor, by intervals that jointly hold with 95 % (Bonferroni)."""
    low, high = inference.interval(changes, level=1 - 0.05 / max(len(controls), 1))
    return "; ".join(
        f"{row.evidence.case.key} moved by {percent(changes.change[i])} ({percent(low[i])} to {percent(high[i])}), "
        f"where {100 * np.expm1(floors[i]):.1f} % is negligible"
        for i, row in enumerate(controls)
        if low[i] > floors[i] or high[i] < -floors[i]
    )


def _moved_together(changes: ChangeEstimate, floors: Floats) -> str:
    """Describe a mean of all controls, in units of their floors, beyond 0.5 by a 95 % interval."""
    known = np.isfinite(changes.se)
    if known.sum() < 2:
        return ""
    shift = (changes.change / floors)[known].mean()
    error = np.sqrt(((np.maximum(changes.se, changes.own_se) / floors)[known] ** 2).sum()) / known.sum()
    half_width = error * stats.t.isf(0.025 / len(LOOKS), changes.own_dof[known].sum())
    if abs(shift) - half_width <= 0.5:
        return ""
    return f"the {known.sum()} controls moved together, by {shift:+.1f} (± {half_width:.1f}) times what is negligible"


def _same_code_moved(rows: Sequence[TimedRow], changes: ChangeEstimate, floors: Floats) -> str:
    """Describe more moved rows of unchanged machine code than chance allows.

    Chance moves 1 % of them in each direction at most. Their number is binomial, and too large below 0.1 %.
    """
    unchanged = [i for i, row in enumerate(rows) if not row.evidence.is_control and _has_fixed_time(row)]
    if not unchanged:
        return ""
    p = len(LOOKS) * np.minimum(inference.p_slower(changes, floors), inference.p_faster(changes, floors))
    moved = [i for i in unchanged if p[i] <= RARE]
    if not moved or stats.binomtest(len(moved), len(unchanged), 2 * RARE, alternative="greater").pvalue > TOO_RARE:
        return ""
    worst = max(moved, key=lambda i: abs(changes.change[i]))
    return (
        f"{len(moved)} of {len(unchanged)} rows moved whose machine code is the same in both commits, such as "
        f"{rows[worst].evidence.case.key} by {percent(changes.change[worst])}"
    )


def _has_fixed_time(row: TimedRow) -> bool:
    """Whether the machine code is unchanged and alone determines the time."""
    case = row.evidence
    if not case.same_code or case.case.clock not in DEVICE_CLOCKS:
        return False
    busy_s = sum(us for _, _, us in case.outcomes["base"].kernels) * 1e-6
    return case.case.clock != "cuda_events" or busy_s >= MIN_BUSY * row.base_s
