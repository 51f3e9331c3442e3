"""From evidence to words: every row of a gate, and whether the machine held still meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from perf.gate import statistics
from perf.gate.evidence import DEVICE_CLOCKS, Evidence, Outcome
from perf.gate.explanation import why_larger, why_slower
from perf.gate.statistics import LOOKS, Estimate, Floats
from perf.gate.verdicts import Judgement, Quantity, Verdict, Word
from perf.harness.case import ARMS

CLOCK_SHIFT = 0.005  # of the SM clock between the arms: above it they are compared in cycles
BUSY = 0.8  # of a time by events must kernels fill, or the host has a say in it
RARE = 0.01  # one-sided: how seldom a row of identical code moves beyond its floor
TOO_RARE = 0.001  # for so many of them together: then it was not chance


def judge(evidence: Sequence[Evidence], looks: Sequence[int] = LOOKS) -> Judgement:
    """A verdict a row, time and peak memory apart; the controls get none, and void all others if they moved.

    A word of a time was said at the first look that allowed it, and stands: `change`, its interval and the smallest
    visible slow-down are of that look.
    """
    rows = [_row(one) for one in evidence if _is_judged(one)]
    said = _said([row for row in rows if not row.evidence.is_control], looks, rows)
    verdicts: list[Verdict] = []
    for one in evidence:
        if one.is_control:
            continue
        if unlike := _unlike_arms(one):
            verdicts += unlike
            continue
        if one.case.timed and all(_works(outcome) for outcome in one.outcomes.values()):
            verdicts.append(_time(one, said.get(id(one))))
        if all(_works(outcome) and outcome.peak_bytes is not None for outcome in one.outcomes.values()):
            verdicts.append(_peak_memory(one))
    return Judgement(tuple(verdicts), _contamination(rows, looks))


def open_rows(evidence: Sequence[Evidence], looks: Sequence[int] = LOOKS) -> list[Evidence]:
    """Those of which nothing can be said yet, and the controls as long as there are any."""
    rows = [_row(one) for one in evidence if _is_judged(one)]
    said = _said([row for row in rows if not row.evidence.is_control], looks, rows)
    is_open = {key for key, one in said.items() if one.word == "AMBIGUOUS"}
    return [one for one in evidence if id(one) in is_open or (one.is_control and is_open)]


@dataclass(frozen=True)
class _Row:
    evidence: Evidence
    changes: dict[int, list[float]]
    """Of each process, its visits."""

    base_s: float
    head_s: float
    floor: float
    note: str


@dataclass(frozen=True)
class _Said:
    row: _Row
    word: Word
    change: float
    low: float | None
    high: float | None
    smallest_visible: float | None


def _works(outcome: Outcome) -> bool:
    return outcome.status in ("ok", "throttled")


def _is_judged(one: Evidence) -> bool:
    return not one.trouble and one.is_timed and set(one.outcomes) == set(ARMS) and any(v.base_s for v in one.visits)


def _row(one: Evidence) -> _Row:
    visits = [visit for visit in one.visits if visit.base_s]
    shifts = [
        float(np.log(visit.head_mhz / visit.base_mhz)) if visit.base_mhz and visit.head_mhz else None
        for visit in visits
    ]
    known = [shift for shift in shifts if shift is not None]
    mean = float(np.mean(known)) if known and one.case.clock in DEVICE_CLOCKS else 0.0
    in_cycles = abs(mean) > CLOCK_SHIFT
    changes: dict[int, list[float]] = {}
    for visit, shift in zip(visits, shifts, strict=True):
        cycles = (mean if shift is None else shift) if in_cycles else 0.0
        changes.setdefault(visit.process, []).append(statistics.visit_change(visit.base_s, visit.head_s) + cycles)
    base_s, head_s = (float(np.median([np.median(getattr(v, f"{arm}_s")) for v in visits])) for arm in ARMS)
    note = f"in cycles, since head's SM clock was {100 * np.expm1(mean):+.1f} % off base's" if in_cycles else ""
    return _Row(one, changes, base_s, head_s, statistics.floor_of(one.negligible, base_s), note)


def _changes(rows: Sequence[_Row], before: int | None = None) -> Floats:
    """[rows, processes, visits], NaN where none was; of the processes before one."""
    taken = [[v for number, v in row.changes.items() if before is None or number < before] for row in rows]
    processes = max((len(row) for row in taken), default=0)
    visits = max((len(v) for row in taken for v in row), default=0)
    table = np.full((len(rows), max(processes, 1), max(visits, 1)), np.nan)
    for i, row in enumerate(taken):
        for j, values in enumerate(row):
            table[i, j, : len(values)] = values
    return table


def _estimate(rows: Sequence[_Row], before: int | None = None) -> Estimate:
    clocks = np.array([row.evidence.case.clock for row in rows])
    return statistics.estimate(statistics.summarize(_changes(rows, before)), clocks)


def _said(rows: Sequence[_Row], looks: Sequence[int], every: Sequence[_Row]) -> dict[int, _Said]:
    """What is said of `rows` at the looks taken so far, by the id of their evidence; `every`: and the controls."""
    said: dict[int, _Said] = {}
    floors = np.array([row.floor for row in rows])
    which = np.array([not row.evidence.is_control for row in every], dtype=bool)
    for look in looks if rows else ():
        found = _estimate(every, look if look != looks[-1] else None).of(which)
        decision = statistics.decide(found, floors, len(looks))
        low, high = statistics.interval(found, len(looks))
        visible = statistics.smallest_visible(found, floors, len(looks))
        for i, row in enumerate(rows):
            key = id(row.evidence)
            if key in said and said[key].word != "AMBIGUOUS":
                continue
            word: Word = "SAME" if decision.same[i] else "AMBIGUOUS"
            if decision.slower[i] or decision.faster[i]:
                word = "SLOWER" if decision.slower[i] else "FASTER"
            change = float(np.expm1(found.change[i]))
            said[key] = _Said(row, word, change, _share(low[i]), _share(high[i]), _share(visible[i]))
    return said


def _share(change: float) -> float | None:
    return float(np.expm1(change)) if np.isfinite(change) else None


def _unlike_arms(one: Evidence) -> list[Verdict]:
    """The verdict on a row whose arms cannot be compared, as one of them has no number; none if both or neither do."""
    if missing := [arm for arm in ARMS if arm not in one.outcomes]:
        return [_unmeasured(one, "AMBIGUOUS", one.trouble or f"not measured: {' and '.join(missing)}")]
    base, head = (one.outcomes[arm] for arm in ARMS)
    if _works(base) == _works(head):
        return []
    if _works(base):
        is_gone = head.status == "unavailable"
        return [_unmeasured(one, "GONE" if is_gone else "BROKEN", head.reason if is_gone else _failure(head))]
    is_new = base.status == "unavailable"
    return [_unmeasured(one, "NEW" if is_new else "FIXED", base.reason if is_new else f"was {_failure(base)}")]


def _failure(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.reason}" if outcome.reason else outcome.status


def _unmeasured(one: Evidence, word: Word, reason: str) -> Verdict:
    quantity: Quantity = "time" if one.case.timed else "peak_memory"
    return Verdict(one.case.key, quantity, word, None, None, None, None, None, None, False, reason)


def _time(one: Evidence, said: _Said | None) -> Verdict:
    if said is None:
        return _unmeasured(one, "AMBIGUOUS", _why_no_times(one))
    base, head, row = one.outcomes["base"], one.outcomes["head"], said.row
    reasons = [row.note]
    if said.word in ("SLOWER", "FASTER"):
        reasons.append("same machine code: how it is launched, the host, or noise" if one.same_code else "")
        reasons.append(why_slower(base, head, row.base_s * said.change))
    elif said.low is None:
        reasons.append(f"measured in {len(row.changes)} process only; it takes 2 to tell noise from change")
    return Verdict(
        key=one.case.key,
        quantity="time",
        word=said.word,
        base=row.base_s,
        head=row.head_s,
        change=said.change,
        low=said.low,
        high=said.high,
        smallest_visible=said.smallest_visible,
        same_code=one.same_code,
        reason="; ".join(filter(None, reasons)),
    )


def _why_no_times(one: Evidence) -> str:
    if one.trouble:
        return one.trouble
    if throttled := [f"{arm}: {one.outcomes[arm].reason}" for arm in ARMS if one.outcomes[arm].status == "throttled"]:
        return "; ".join(throttled)
    if dropped := sum(visit.throttled for visit in one.visits):
        return f"the device slowed itself down during all {dropped} pairs of samples"
    return "no times were taken"


def _peak_memory(one: Evidence) -> Verdict:
    arms = one.outcomes["base"], one.outcomes["head"]
    base, head = (float(arm.peak_bytes or 0) for arm in arms)
    change = 0.0 if base == head else head / base - 1 if base else None
    word: Word = "SAME" if base == head else "LARGER" if head > base else "SMALLER"
    reason = "" if word == "SAME" else why_larger(*arms)
    return Verdict(one.case.key, "peak_memory", word, base, head, change, change, change, None, one.same_code, reason)


def _contamination(rows: Sequence[_Row], looks: Sequence[int]) -> str:
    """What shows that the arms differed in more than their code; "" if nothing does."""
    if not rows:
        return ""
    found, floors = _estimate(rows), np.array([row.floor for row in rows])
    which = np.array([row.evidence.is_control for row in rows], dtype=bool)
    controls = [row for row in rows if row.evidence.is_control]
    return "; ".join(
        filter(
            None,
            [
                _moved(controls, found.of(which), floors[which], len(looks)),
                _moved_together(found.of(which), floors[which], len(looks)),
                _same_code_moved(rows, found, floors, len(looks)),
            ],
        )
    )


def _moved(controls: Sequence[_Row], found: Estimate, floors: Floats, looks: int) -> str:
    """Controls beyond what is negligible, by intervals that hold all of them with 95 % (Bonferroni)."""
    low, high = statistics.interval(found, looks, level=1 - 0.05 / max(len(controls), 1))
    return "; ".join(
        f"{row.evidence.case.key} moved by {_percent(found.change[i])} ({_percent(low[i])} to {_percent(high[i])}), "
        f"where {100 * np.expm1(floors[i]):.1f} % is negligible"
        for i, row in enumerate(controls)
        if low[i] > floors[i] or high[i] < -floors[i]
    )


def _moved_together(found: Estimate, floors: Floats, looks: int) -> str:
    """The mean of all controls, each in units of what is negligible for it, beyond a half by a 95 % interval."""
    known = np.isfinite(found.se)
    if known.sum() < 2:
        return ""
    shift = (found.change / floors)[known].mean()
    error = np.sqrt(((np.maximum(found.se, found.own_se) / floors)[known] ** 2).sum()) / known.sum()
    half = error * stats.t.isf(0.025 / looks, found.own_dof[known].sum())
    if abs(shift) - half <= 0.5:
        return ""
    return f"the {known.sum()} controls moved together, by {shift:+.1f} (± {half:.1f}) times what is negligible"


def _same_code_moved(rows: Sequence[_Row], found: Estimate, floors: Floats, looks: int) -> str:
    """Rows of the same machine code beyond their floor, more than chance allows.

    By chance, 1 % in each direction at most: so many of so many are binomial, and are too many below 0.1 %.
    """
    of = [i for i, row in enumerate(rows) if not row.evidence.is_control and _is_calibration(row)]
    if not of:
        return ""
    p = looks * np.minimum(statistics.p_slower(found, floors), statistics.p_faster(found, floors))
    moved = [i for i in of if p[i] <= RARE]
    if not moved or stats.binomtest(len(moved), len(of), 2 * RARE, alternative="greater").pvalue > TOO_RARE:
        return ""
    worst = max(moved, key=lambda i: abs(found.change[i]))
    return (
        f"{len(moved)} of {len(of)} rows moved whose machine code is the same in both commits, such as "
        f"{rows[worst].evidence.case.key} by {_percent(found.change[worst])}"
    )


def _is_calibration(row: _Row) -> bool:
    """Whether the machine code alone makes the time, so that the same code must take the same time."""
    one = row.evidence
    if not one.same_code or one.case.clock not in DEVICE_CLOCKS:
        return False
    busy_s = sum(us for _, _, us in one.outcomes["base"].kernels) * 1e-6
    return one.case.clock != "cuda_events" or busy_s >= BUSY * row.base_s


def _percent(change: float) -> str:
    return f"{100 * np.expm1(change):+.1f} %"
