"""From evidence to words: every row of a gate, and whether the machine held still meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from perf import units
from perf.gate import statistics
from perf.gate.evidence import DEVICE_CLOCKS, Evidence, Outcome, PairedVisit
from perf.gate.explanation import why_larger, why_slower
from perf.gate.identical import SHORTEST_S
from perf.gate.statistics import LOOKS, Estimate, Floats
from perf.gate.verdicts import Judgement, Quantity, Verdict, Visits, Word
from perf.harness.case import ARMS

CLOCK_SHIFT = 0.005  # of the SM clock between the arms: above it, what cycles explain is said beside the word
BUSY = 0.8  # of a time by events must kernels fill, or the host has a say in it
MOST = 1000.0  # times as long: a change beyond it, or that may be, has no number
RARE = 0.01  # one-sided: how seldom a row of identical code moves beyond its floor
TOO_RARE = 0.001  # for so many of them together: then it was not chance


def judge(evidence: Sequence[Evidence], looks: Sequence[int] = LOOKS) -> Judgement:
    """A verdict a row, time and peak memory apart; the controls get none, and void all others if they moved.

    SAME was said at the first look that allowed it, and stands, but for rows that were drawn to be measured on; SLOWER
    and FASTER are of the last look alone. `change` and its interval are of the look that gave the word.
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
            verdicts.append(_time(one, said.get(id(one)), looks))
        if all(_works(outcome) and outcome.peak_bytes is not None for outcome in one.outcomes.values()):
            verdicts.append(_peak_memory(one))
    cut_short = sum(one.word == "AMBIGUOUS" and _goes_on(one, looks) for one in said.values())
    return Judgement(tuple(verdicts), _contamination(rows, looks), _missing(evidence), cut_short)


def visits(evidence: Sequence[Evidence]) -> Visits:
    """Of each row with times, controls included, as they were judged."""
    rows = [_row(one) for one in evidence if _is_judged(one)]
    return {
        row.evidence.case.key: [(process, round(change, 7)) for process, of in row.changes.items() for change in of]
        for row in rows
    }


def open_rows(evidence: Sequence[Evidence], looks: Sequence[int] = LOOKS) -> list[Evidence]:
    """Those that another process may bring a word, the most pressing first; and the controls if there are any.

    Before the last look these are the suspects alone, those that may be slower or faster, and the rows that were drawn.
    """
    rows = [_row(one) for one in evidence if _is_judged(one)]
    said = _said([row for row in rows if not row.evidence.is_control], looks, rows)
    found = sorted((one for one in said.values() if _goes_on(one, looks)), key=_urgency)
    return [one.row.evidence for one in found] + [one for one in evidence if one.is_control and found]


def _urgency(said: "_Said") -> tuple[bool, bool, float]:
    """First what is likely slower, the worst before all; then what is likely faster; then the rest."""
    change = said.change or 0.0
    return not said.is_suspect, change <= 0, -abs(change)


def _goes_on(said: "_Said", looks: Sequence[int]) -> bool:
    taken = len(said.row.changes)
    if taken >= looks[-1] or said.word != "AMBIGUOUS":
        return taken < looks[-1] and said.row.evidence.is_drawn
    return said.is_suspect or len(looks) < 2 or taken < looks[-2]


@dataclass(frozen=True)
class _Row:
    evidence: Evidence
    changes: dict[int, list[float]]
    """Of each process, its visits: log ratios; of a difference, shares of the whole."""

    base_s: float
    head_s: float
    whole_s: float | None
    """Of a difference, what it is a share of; None for a time."""

    floor: float
    note: str

    def share(self, change: float) -> float | None:
        """What a reader sees for a change: head / base - 1, or the share of the whole; None beyond `MOST`."""
        if not change <= np.log(MOST):
            return None
        return float(np.expm1(change)) if self.whole_s is None else change


@dataclass(frozen=True)
class _Said:
    row: _Row
    word: Word
    change: float | None
    low: float | None
    high: float | None
    smallest_visible: float | None
    is_suspect: bool
    was_same: bool
    """At an earlier look; then it was measured on, as it had been drawn."""


def _works(outcome: Outcome) -> bool:
    return outcome.status in ("ok", "throttled")


def _is_judged(one: Evidence) -> bool:
    return not one.trouble and one.is_timed and set(one.outcomes) == set(ARMS) and any(map(_is_usable, one.visits))


def _is_usable(visit: PairedVisit) -> bool:
    """Whether every pair has two finite times above 0; of a difference, which may be negative, two finite ones."""
    samples = np.asarray(visit.base_s + visit.head_s, dtype=float)
    if not len(visit.base_s) or len(visit.base_s) != len(visit.head_s) or not np.isfinite(samples).all():
        return False
    return bool(visit.whole_s is not None and visit.whole_s > 0) or bool((samples > 0).all())


def _row(one: Evidence) -> _Row:
    visits = [visit for visit in one.visits if _is_usable(visit)]
    wholes = [visit.whole_s for visit in visits if visit.whole_s is not None]
    whole_s = float(np.median(wholes)) if wholes else None
    changes: dict[int, list[float]] = {}
    for visit in visits:
        changes.setdefault(visit.process, []).append(
            statistics.visit_change(visit.base_s, visit.head_s)
            if whole_s is None
            else statistics.visit_difference(visit.base_s, visit.head_s) / whole_s
        )
    base_s, head_s = (float(np.median([np.median(getattr(v, f"{arm}_s")) for v in visits])) for arm in ARMS)
    if whole_s is None:
        floor, notes = _floor(one, base_s), [_of_the_clock(one, visits)]
    else:
        floor = max(one.negligible[0], one.negligible[1] / whole_s)
        notes = [f"a difference, judged as a share of the {units.seconds(whole_s)} that it is a part of"]
    if bad := len(one.visits) - len(visits):
        notes.append(f"{bad} of {len(one.visits)} visits left out: a time that is no number above 0, or unlike arms")
    return _Row(one, changes, base_s, head_s, whole_s, floor, "; ".join(filter(None, notes)))


def _floor(one: Evidence, base_s: float) -> float:
    """What is negligible, as a log ratio: for kernels that are long enough the row's own margin, where it is less."""
    floor = statistics.floor_of(one.negligible, base_s)
    if one.margin is None or one.case.clock not in DEVICE_CLOCKS or base_s < SHORTEST_S:
        return floor
    return min(floor, float(np.log1p(one.margin)))


def _of_the_clock(one: Evidence, visits: Sequence[PairedVisit]) -> str:
    """What cycles explain, where the arms ran at different clocks. A user waits in seconds: the word is of these."""
    shifts = [np.log(visit.head_mhz / visit.base_mhz) for visit in visits if visit.base_mhz and visit.head_mhz]
    if not shifts or one.case.clock not in DEVICE_CLOCKS or abs(mean := float(np.mean(shifts))) <= CLOCK_SHIFT:
        return ""
    return f"head's SM clock was {100 * np.expm1(mean):+.1f} % off base's, which explains {_percent(-mean)} of the time"


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
    taken = np.array([len(row.changes) for row in rows])
    which = np.array([not row.evidence.is_control for row in every], dtype=bool)
    for look in looks if rows else ():
        is_last = look == looks[-1]
        found = _estimate(every, None if is_last else look).of(which)
        decision = statistics.decide(found, floors, len(looks))
        low, high = statistics.interval(found, len(looks))
        visible = statistics.smallest_visible(statistics.confirmed(found, np.minimum(taken, look), looks[-1]), floors)
        for i, row in enumerate(rows):
            key = id(row.evidence)
            was_same = key in said and said[key].word != "AMBIGUOUS"
            is_complete = is_last and taken[i] >= look
            if was_same and not (is_complete and row.evidence.is_drawn):
                continue
            word: Word = "SAME" if decision.same[i] else "AMBIGUOUS"
            if word != "SAME" and is_complete and (decision.slower[i] or decision.faster[i]):
                word = "SLOWER" if decision.slower[i] else "FASTER"
            said[key] = _Said(
                row,
                word,
                row.share(found.change[i]),
                *_ends(row, low[i], high[i]),
                row.share(visible[i]),
                bool(decision.suspect[i]),
                was_same,
            )
    return said


def _ends(row: _Row, low: float, high: float) -> tuple[float | None, float | None]:
    """Of the interval, both or none."""
    ends = row.share(low), row.share(high)
    return (None, None) if None in ends or not np.isfinite(low) else ends


def _unlike_arms(one: Evidence) -> list[Verdict]:
    """The verdict on a row whose arms cannot be compared, as one of them has no number; none if both or neither do."""
    if set(one.outcomes) != set(ARMS):
        return [_unmeasured(one, "AMBIGUOUS", _why_no_times(one))]
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


def _time(one: Evidence, said: _Said | None, looks: Sequence[int]) -> Verdict:
    if said is None:
        return _unmeasured(one, "AMBIGUOUS", _why_no_times(one))
    base, head, row = one.outcomes["base"], one.outcomes["head"], said.row
    reasons = [row.note]
    if said.word in ("SLOWER", "FASTER"):
        reasons.append("same machine code: how it is launched, the host, or noise" if one.same_code else "")
        reasons.append(why_slower(base, head, (row.whole_s or row.base_s) * (said.change or 0.0)))
    elif len(row.changes) < 2:
        reasons.append("measured in 1 process only; it takes 2 to tell noise from change")
    elif said.low is None:
        reasons.append(f"its visits scatter so much that it may be {MOST:g} times as slow or as fast")
    elif said.word == "AMBIGUOUS" and said.is_suspect and len(row.changes) < looks[-1]:
        seen = "slower" if (said.change or 0.0) > 0 else "faster"
        reasons.append(f"{seen} in {len(row.changes)} processes; {looks[-1]} confirm it, and the budget ended before")
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
        negligible=row.share(row.floor),
        was_same=said.was_same,
    )


def _why_no_times(one: Evidence) -> str:
    if one.trouble:
        return one.trouble
    if missing := [arm for arm in ARMS if arm not in one.outcomes]:
        return f"not measured: {' and '.join(missing)}"
    if failed := [f"{arm}: {_failure(one.outcomes[arm])}" for arm in ARMS if not _works(one.outcomes[arm])]:
        return "; ".join(failed)
    if throttled := [f"{arm}: {one.outcomes[arm].reason}" for arm in ARMS if one.outcomes[arm].status == "throttled"]:
        return "; ".join(throttled)
    if dropped := sum(visit.throttled for visit in one.visits):
        return f"the device slowed itself down during all {dropped} pairs of samples"
    if one.visits:
        return f"none of {len(one.visits)} visits can be used: a time that is no number above 0, or unlike arms"
    return "no times were taken"


def _peak_memory(one: Evidence) -> Verdict:
    """LARGER and SMALLER are said of peaks that differ alike in every process that weighed them, two at least."""
    arms = one.outcomes["base"], one.outcomes["head"]
    peaks = [(float(arms[0].peak_bytes or 0), float(arms[1].peak_bytes or 0)), *one.more_peaks]
    base, head = min(peaks, key=lambda pair: abs(pair[1] - pair[0]))
    change = 0.0 if base == head else head / base - 1 if base else None
    if all(first == second for first, second in peaks):
        word: Word = "SAME"
        reason = ""
    elif len(peaks) > 1 and (all(b < h for b, h in peaks) or all(b > h for b, h in peaks)):
        word, reason = "LARGER" if head > base else "SMALLER", why_larger(*arms)
    else:
        word, reason = "AMBIGUOUS", f"the peaks differ by {' and '.join(f'{h - b:+.0f} B' for b, h in peaks)}"
        reason += ": not alike" if len(peaks) > 1 else ", seen once: a second process confirms it"
    return Verdict(one.case.key, "peak_memory", word, base, head, change, change, change, None, one.same_code, reason)


def _missing(evidence: Sequence[Evidence]) -> str:
    """Controls without a time, each with its reason: what they would have shown, nobody saw."""
    if not any(one.case.timed and not one.is_control for one in evidence):
        return ""
    controls = [one for one in evidence if one.is_control and one.case.timed]
    if not controls:
        return "no control was measured"
    return "; ".join(f"{one.case.key}: {_why_no_times(one)}" for one in controls if not _is_judged(one))


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
