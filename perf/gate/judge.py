"""Judge the evidence of a gate: a verdict for each time and each peak memory, and the rows that need more processes."""

from collections.abc import Sequence

from perf.gate.contamination import contamination, missing_controls
from perf.gate.decisions import RowDecision, decide_rows
from perf.gate.evidence import Evidence
from perf.gate.explanation import why_larger, why_slower
from perf.gate.timed_rows import MAX_RATIO, timed_rows, why_no_times
from perf.gate.verdicts import LOOKS, Judgement, Quantity, Verdict, Visits, Word
from perf.harness.case import ARMS
from perf.workloads import NOT_INSTALLED


def judge(evidence: Sequence[Evidence]) -> Judgement:
    """Judge time and peak memory of every case. Controls get no verdict; if they moved, they invalidate all times.

    SAME stands from the first look that allows it, except for rows drawn to be measured on; SLOWER and FASTER come
    from the last look alone. `change` and its interval belong to the look that gave the word.
    """
    rows = timed_rows(evidence)
    decisions = {id(decision.row.evidence): decision for decision in decide_rows(rows)}
    verdicts: list[Verdict] = []
    for case in evidence:
        if not case.is_control:
            verdicts += _verdicts(case, decisions.get(id(case)))
    cut_short = sum(decision.word == "AMBIGUOUS" and decision.needs_more for decision in decisions.values())
    return Judgement(tuple(verdicts), contamination(rows), missing_controls(evidence), cut_short)


def open_rows(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return the cases that another process may decide, most urgent first, followed by the controls if there are any.

    Before the last look these are suspects, which may be slower or faster, and drawn rows.
    """
    undecided = [decision for decision in decide_rows(timed_rows(evidence)) if decision.needs_more]
    undecided.sort(key=lambda decision: decision.urgency)
    controls = [case for case in evidence if case.is_control and undecided]
    return [decision.row.evidence for decision in undecided] + controls


def visits(evidence: Sequence[Evidence]) -> Visits:
    """Return the changes of every timed case, controls included, as they were judged."""
    return {
        row.evidence.case.key: [
            (process, round(change, 7)) for process, changes in row.changes.items() for change in changes
        ]
        for row in timed_rows(evidence)
    }


def _verdicts(case: Evidence, decision: RowDecision | None) -> list[Verdict]:
    """Judge one case; no verdict if it fails in both arms."""
    if set(case.outcomes) != set(ARMS):
        return [_without_number(case, "AMBIGUOUS", why_no_times(case))]
    base, head = (case.outcomes[arm] for arm in ARMS)
    if base.works and not head.works:
        is_gone = head.status == "unavailable" and not head.reason.endswith(NOT_INSTALLED)  # base runs here
        return [_without_number(case, "GONE" if is_gone else "BROKEN", head.reason if is_gone else head.failure)]
    if head.works and not base.works:
        is_new = base.status == "unavailable"
        return [_without_number(case, "NEW" if is_new else "FIXED", base.reason if is_new else f"was {base.failure}")]
    if not base.works:
        return []
    verdicts = []
    if case.case.timed:
        verdicts.append(_time(case, decision) if decision else _without_number(case, "AMBIGUOUS", why_no_times(case)))
    if base.peak_bytes is not None and head.peak_bytes is not None:
        verdicts.append(_peak_memory(case))
    return verdicts


def _without_number(case: Evidence, word: Word, reason: str) -> Verdict:
    quantity: Quantity = "time" if case.case.timed else "peak_memory"
    return Verdict(case.case.key, quantity, word, None, None, None, None, None, None, False, reason)


def _time(case: Evidence, decision: RowDecision) -> Verdict:
    row = decision.row
    return Verdict(
        key=case.case.key,
        quantity="time",
        word=decision.word,
        base=row.base_s,
        head=row.head_at(decision.change),
        change=decision.change,
        low=decision.low,
        high=decision.high,
        min_detectable=decision.min_detectable,
        same_code=case.same_code,
        reason="; ".join(filter(None, [row.note, *_reasons(case, decision)])),
        negligible=row.shown(row.floor),
        was_same=decision.was_same,
    )


def _reasons(case: Evidence, decision: RowDecision) -> list[str]:
    """Explain a change, or a row that is undecided."""
    row, change, processes = decision.row, decision.change or 0.0, len(decision.row.changes)
    if decision.word in ("SLOWER", "FASTER"):
        launch = "same machine code: a change of the launch, of the host, or noise" if case.same_code else ""
        base, head = (case.outcomes[arm] for arm in ARMS)
        return [launch, why_slower(base, head, (row.whole_s or row.base_s) * change)]
    if processes < 2:
        return ["measured in 1 process; a confidence interval needs 2"]
    if decision.low is None:
        return [f"its visits scatter so much that the ratio may exceed {MAX_RATIO:g} either way"]
    if decision.word == "AMBIGUOUS" and decision.is_suspect and processes < LOOKS[-1]:
        direction = "slower" if change > 0 else "faster"
        return [f"{direction} in {processes} processes; {LOOKS[-1]} are needed, and the budget ended before"]
    return []


def _peak_memory(case: Evidence) -> Verdict:
    """Judge peak bytes. LARGER and SMALLER need at least two processes, and in all of them a difference of one sign.

    SAME needs equal peaks in most processes: the first arm that runs in a fresh process may allocate what lasts.
    """
    arms = case.outcomes["base"], case.outcomes["head"]
    peaks = [(float(arms[0].peak_bytes or 0), float(arms[1].peak_bytes or 0)), *case.more_peaks]
    base, head = min(peaks, key=lambda pair: abs(pair[1] - pair[0]))
    change = 0.0 if base == head else head / base - 1 if base else None
    word: Word
    if 2 * sum(first == second for first, second in peaks) > len(peaks):
        word, reason = "SAME", ""
    elif len(peaks) > 1 and (all(b < h for b, h in peaks) or all(b > h for b, h in peaks)):
        word, reason = "LARGER" if head > base else "SMALLER", why_larger(*arms)
    else:
        word, reason = "AMBIGUOUS", f"the peaks differ by {' and '.join(f'{h - b:+.0f} B' for b, h in peaks)}"
        reason += ": inconsistent" if len(peaks) > 1 else " in one process; a second one must confirm it"
    return Verdict(case.case.key, "peak_memory", word, base, head, change, change, change, None, case.same_code, reason)
