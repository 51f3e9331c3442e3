"""What a gate says: a word a row, the numbers behind it, and whether the whole may be believed."""

from dataclasses import dataclass, field
from typing import Any, Literal

Quantity = Literal["time", "peak_memory"]
Word = Literal["SLOWER", "FASTER", "LARGER", "SMALLER", "SAME", "AMBIGUOUS", "BROKEN", "FIXED", "NEW", "GONE"]
"""SLOWER, FASTER: of times. LARGER, SMALLER: of bytes. BROKEN: was a number, now a failure; FIXED: the reverse. NEW,
GONE: only one of the commits has it."""

BAD: tuple[Word, ...] = ("BROKEN", "SLOWER", "LARGER")
"""What turns a report red, unless it was accepted."""

LOOKS = (3, 5, 8, 12)
"""Judge a row after these numbers of processes. Only the last can confirm SLOWER or FASTER."""

Visits = dict[str, list[tuple[int, float]]]
"""By row, of each visit its process and its change: log(head / base), or a difference's share of the whole."""


@dataclass(frozen=True)
class Verdict:
    """One row of a report."""

    key: str
    """The case's name, as asv writes it."""

    quantity: Quantity
    word: Word
    base: float | None
    """Median seconds, or peak bytes; None where the arm has none."""

    head: float | None
    change: float | None
    """head / base - 1."""

    low: float | None
    """Of the 95 % interval of `change`; both ends equal it for bytes, which are exact."""

    high: float | None
    smallest_visible: float | None
    """The smallest slow-down that would be called SLOWER with a probability of 95 %, by twelve processes whose visits
    scatter as the row's did; None for bytes, and where none below 1000 times would be, or too little was seen."""

    same_code: bool
    """Both arms ran the same machine code: whatever this row says is noise."""

    reason: str
    """Why it has no number, or what explains the change; "" if nothing is known."""

    accepted: str = ""
    """The reason that somebody gave for being worse (`perf.gate.acceptance`); "" if nobody did."""

    negligible: float | None = None
    """The change, as a share, beyond which SLOWER and within which SAME is said; None for bytes, which are exact."""

    was_same: bool = False
    """It was the SAME after fewer processes, had been drawn at random, and was measured in all: this is what became."""

    @property
    def is_bad(self) -> bool:
        """Whether it turns the report red."""
        return self.word in BAD and not self.accepted


@dataclass(frozen=True)
class Judgement:
    """All rows of one gate, judged together."""

    verdicts: tuple[Verdict, ...]
    contaminated: str
    """What the controls did, if they moved between the arms: then no time above means anything. "" if they held."""

    unwatched: str = ""
    """Controls that have no time, and why: whether the machine held still, they cannot say. "" if all have."""

    cut_short: int = 0
    """Rows whose measuring the budget ended: none of them could have been called slower, by however much."""

    @property
    def believed(self) -> tuple[Verdict, ...]:
        """What may be believed: everything that was decided, but no times beside controls that moved."""
        return tuple(
            one
            for one in self.verdicts
            if one.word != "AMBIGUOUS" and not (self.contaminated and one.word in ("SLOWER", "FASTER", "SAME"))
        )

    @property
    def exit_status(self) -> int:
        """0: nothing worse; 1: something is; 2: nothing could be judged, or times were asked for and none was."""
        if any(one.is_bad for one in self.believed):
            return 1
        asked = {one.quantity for one in self.verdicts}
        return 2 if self.contaminated or asked - {one.quantity for one in self.believed} or not asked else 0


@dataclass(frozen=True)
class Report:
    """A judgement with everything that a reader needs to believe it or to repeat it."""

    base: dict[str, Any]
    """commit, subject"""

    head: dict[str, Any]
    judgement: Judgement
    without: tuple[tuple[str, int], ...]
    """Why rows are missing, and how many: what neither commit can do here, and what the budget did not reach."""

    device: dict[str, Any]
    software: dict[str, Any]
    head_software: dict[str, Any]
    """Of head, if it was measured in an environment of its own; else empty."""

    command: str
    """What repeats it."""

    seconds: float
    """Wall time of the whole."""

    spent_s: dict[str, float]
    """Of that, seconds by what they were for; {} where each arm had a process of its own."""

    processes: int
    """Most processes that a row was measured in."""

    tests_passed: bool
    tests: str
    """How HEAD's tests ended, in one line: "1766 passed, 391 skipped"; or why they were not run."""

    differences: tuple[tuple[str, str], ...] = ()
    """Cases whose results differ by more than rounding though both arms are right, and how: a warning."""

    visits: Visits = field(default_factory=dict)
    """What the words were drawn from, controls included."""

    @property
    def exit_status(self) -> int:
        """0: nothing is worse; 1: something is, or HEAD's tests fail; 2: nothing could be judged."""
        return self.judgement.exit_status if self.tests_passed else 1
