"""Decide each timed row over the looks taken so far, and which rows need another process."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perf.gate import inference
from perf.gate.timed_rows import TimedRow, estimate
from perf.gate.verdicts import LOOKS, Word


@dataclass(frozen=True)
class RowDecision:
    """Word of a row, with the numbers of the look that gave it."""

    row: TimedRow
    word: Word
    change: float | None
    low: float | None
    high: float | None
    min_detectable: float | None
    is_suspect: bool
    was_same: bool
    """Whether an earlier look gave SAME and the row was measured on because it had been drawn."""

    @property
    def needs_more(self) -> bool:
        """Whether another process may change the word."""
        taken = len(self.row.changes)
        if taken >= LOOKS[-1] or self.word != "AMBIGUOUS":
            return taken < LOOKS[-1] and self.row.evidence.is_drawn
        return self.is_suspect or taken < LOOKS[-2]

    @property
    def urgency(self) -> tuple[bool, bool, float]:
        """Sort key: likely slower first, largest change first; then likely faster; then the rest."""
        change = self.change or 0.0
        return not self.is_suspect, change <= 0, -abs(change)


def decide_rows(rows: Sequence[TimedRow]) -> list[RowDecision]:
    """Decide all rows but the controls, which only lend their scatter to the prior."""
    decided: dict[int, RowDecision] = {}
    judged = [row for row in rows if not row.evidence.is_control]
    is_judged = np.array([not row.evidence.is_control for row in rows], dtype=bool)
    floors = np.array([row.floor for row in judged])
    taken = np.array([len(row.changes) for row in judged])
    for look in LOOKS if judged else ():
        is_last = look == LOOKS[-1]
        changes = estimate(rows, None if is_last else look).of(is_judged)
        decision = inference.decide(changes, floors)
        low, high = inference.interval(changes)
        later = inference.at_last_look(changes, np.minimum(taken, look))
        detectable = inference.min_detectable(later, floors)
        for i, row in enumerate(judged):
            was_same = i in decided and decided[i].word != "AMBIGUOUS"
            is_complete = is_last and taken[i] >= look
            if was_same and not (is_complete and row.evidence.is_drawn):
                continue
            word: Word = "SAME" if decision.same[i] else "AMBIGUOUS"
            if word != "SAME" and is_complete and (decision.slower[i] or decision.faster[i]):
                word = "SLOWER" if decision.slower[i] else "FASTER"
            decided[i] = RowDecision(
                row,
                word,
                row.shown(changes.change[i]),
                *_ends(row, low[i], high[i]),
                row.shown(detectable[i]),
                bool(decision.suspect[i]),
                was_same,
            )
    return [decided[i] for i in range(len(judged)) if i in decided]


def _ends(row: TimedRow, low: float, high: float) -> tuple[float | None, float | None]:
    """Return both ends of the confidence interval, or neither."""
    ends = row.shown(low), row.shown(high)
    return (None, None) if None in ends or not np.isfinite(low) else ends
