"""Verdicts of a gate, the numbers behind them, and whether the report as a whole may be believed."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from perf.forms import Finite, positive

Quantity = Literal["time", "peak_memory"]
Word = Literal["SLOWER", "FASTER", "LARGER", "SMALLER", "SAME", "AMBIGUOUS", "BROKEN", "FIXED", "NEW", "GONE"]
"""SLOWER and FASTER describe times, LARGER and SMALLER bytes. BROKEN: base has a number and head fails; FIXED: the
reverse. NEW and GONE: only one of the commits has the case."""

BAD: tuple[Word, ...] = ("BROKEN", "SLOWER", "LARGER")
"""Words that fail a report unless they were accepted."""

RULES = "3"
"""Version of the rules by which evidence becomes verdicts, incremented by hand whenever a verdict may differ.

By version 1, which no document names, three processes made a row SLOWER. By version 2, a row whose head failed only
while it was timed was AMBIGUOUS.
"""

LOOKS = (3, 5, 8, 12)
"""Judge a row after these numbers of processes. Only the last can confirm SLOWER or FASTER."""

OUT_OF_TIME = "the budget ended before the first visit"
"""The reason in `Report.without` that more time removes."""

UNMEASURED = "not measured"
"""Start of the reason of a verdict without a number whose case was never visited."""

Visits = dict[str, list[tuple[int, float]]]
"""Process and change of each visit, by case key. A change is log(head / base), or a difference's share of its step."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on the time or the peak memory of one case."""

    key: str
    """Case name as asv writes it."""

    quantity: Quantity
    word: Word
    base: float | None
    """Median seconds or peak bytes; None if the arm has no number."""

    head: float | None
    """Peak bytes, or the base's median with the change of the paired samples; the head's median if there is none."""

    change: float | None
    """head / base - 1; of a difference, (head - base) / the enclosing step."""

    low: float | None
    """Lower end of the 95 % confidence interval of `change`; bytes are exact, so both ends equal it."""

    high: float | None
    min_detectable: Annotated[Finite, positive] | None = field(metadata={"key": "smallest_visible"})
    """Minimum detectable slow-down: SLOWER with a probability of 95 % at the last look, given this row's scatter. None
    for bytes, for more than a factor of 1000, and for too few visits."""

    same_code: bool
    """Whether both arms ran the same machine code, so that any change is noise."""

    reason: str
    """Explanation of the change or of a missing number; "" if unknown."""

    accepted: str = ""
    """Reason given for accepting a regression (`perf.gate.acceptance`); "" if it was not accepted."""

    negligible: float | None = None
    """Share beyond which a change is SLOWER or FASTER, and within which it is SAME; None for bytes."""

    was_same: bool = False
    """Whether the row was SAME after fewer processes and was measured on because it had been drawn."""

    @property
    def is_bad(self) -> bool:
        """Whether the verdict fails the report."""
        return self.word in BAD and not self.accepted

    @property
    def looks_slower(self) -> bool:
        """Whether the whole interval of a time lies above what is negligible."""
        return self.low is not None and self.negligible is not None and self.low > self.negligible

    @property
    def failure(self) -> str:
        """How a BROKEN row failed, since its reason is an `Outcome.failure`; "" for other rows."""
        return self.reason.partition(":")[0] if self.word == "BROKEN" else ""


@dataclass(frozen=True)
class Judgement:
    """Verdicts of one gate, judged together."""

    verdicts: tuple[Verdict, ...]
    contaminated: str
    """Description of how the controls moved between the arms, which invalidates every time; "" if they held."""

    unwatched: str = ""
    """Controls without a time, with reasons; they cannot tell whether the machine held still. "" if all have one."""

    cut_short: int = 0
    """Number of rows that the budget ended before SLOWER could be reported."""

    @property
    def believed(self) -> tuple[Verdict, ...]:
        """Verdicts to act on: all but AMBIGUOUS, and no times if the controls moved."""
        return tuple(
            verdict
            for verdict in self.verdicts
            if verdict.word != "AMBIGUOUS" and not (self.contaminated and verdict.word in ("SLOWER", "FASTER", "SAME"))
        )

    @property
    def exit_status(self) -> int:
        """0: no regression; 1: a regression; 2: no row is left, a suspect is, or no time or peak memory was judged."""
        if any(verdict.is_bad for verdict in self.believed):
            return 1
        are_gone = all(verdict.word == "GONE" for verdict in self.verdicts)  # of none too
        return 2 if self.contaminated or self.undecided or self.suspects or are_gone else 0

    @property
    def suspects(self) -> tuple[Verdict, ...]:
        """Times that are slower by more than is negligible, where the budget ended before that was confirmed."""
        return tuple(
            verdict
            for verdict in self.verdicts
            if self.cut_short and verdict.word == "AMBIGUOUS" and verdict.looks_slower
        )

    @property
    def undecided(self) -> set[Quantity]:
        """Quantities that rows of both commits have and of which none was judged."""
        of_both, judged = (
            {verdict.quantity for verdict in verdicts if verdict.word not in ("NEW", "GONE")}
            for verdicts in (self.verdicts, self.believed)
        )
        return of_both - judged


@dataclass(frozen=True)
class Unreached:
    """Rows that the change cannot reach, by the map of what they run (`perf.harness.reach`)."""

    skipped: tuple[str, ...] = ()
    """Keys of those that were not measured."""

    sampled: tuple[str, ...] = ()
    """Keys of those that were measured all the same, to test the map."""

    why_none: str = ""
    """Reason why the map was not used; "" if it was."""


@dataclass(frozen=True)
class Report:
    """A judgement with everything needed to believe it or to repeat it."""

    base: dict[str, Any]
    """commit, subject"""

    head: dict[str, Any]
    judgement: Judgement
    without: tuple[tuple[str, int], ...]
    """Reasons for missing rows with counts: cases that neither commit can run, and cases beyond the budget."""

    device: dict[str, Any]
    software: dict[str, Any]
    head_software: dict[str, Any]
    """Versions of head's own environment; empty if both arms share one."""

    command: str
    """Command that repeats the gate."""

    seconds: float
    """Wall time of the whole gate."""

    spent_s: dict[str, float]
    """Seconds of it by purpose; {} if each arm had a process of its own."""

    processes: int
    """Maximum number of processes that measured a row."""

    tests_passed: bool
    tests: str
    """Summary of HEAD's tests, such as "1766 passed, 391 skipped", or the reason for not running them."""

    differences: tuple[tuple[str, str], ...] = ()
    """Warnings: cases whose results differ by more than rounding although both arms pass their checks."""

    visits: Visits = field(default_factory=dict)
    """Visits behind the verdicts, controls included."""

    unreached: Unreached = field(default_factory=Unreached)
    removed: tuple[str, ...] = ()
    """Keys of the rows that head takes out of the suite."""

    rules: str = ""
    """`RULES` that judged it; "" in older files."""

    @property
    def is_of_identical_code(self) -> bool:
        """Whether both arms are the same commit (an A/A gate)."""
        return bool(self.base["commit"] == self.head["commit"])

    @property
    def exit_status(self) -> int:
        """0: no regression; 1: a regression, or HEAD's tests fail; 2: nothing could be judged, or a suspect is left."""
        if not self.tests_passed:
            return 1
        return 0 if self.reaches_none else self.judgement.exit_status

    @property
    def reaches_none(self) -> bool:
        """Whether no row was to be measured, since the change reaches none."""
        return bool(self.unreached.skipped) and not self.judgement.verdicts and not self.without
