"""What a gate measured, before anybody judges it: plain data, as the measuring processes give it."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from perf.harness.case import ARMS, ArmName, Case
from perf.harness.status import Status

DEVICE_CLOCKS = ("cuda_events", "cuda_graph", "device_busy")
"""Those that leave out what the host does."""


@dataclass(frozen=True)
class Arm:
    """One of the two commits."""

    commit: str
    """40 hex digits, or "working tree"."""

    subject: str
    """First line of its message."""

    python: str = ""
    """Executable of the environment that it is measured in; "" is this one."""


@dataclass(frozen=True)
class PairedVisit:
    """One stay at a row, in one process: both arms in turn, sample by sample (A B B A ...)."""

    process: int
    visit: int
    base_s: tuple[float, ...]
    """Seconds, in the order taken; `head_s[i]` was taken next to `base_s[i]`."""

    head_s: tuple[float, ...]
    base_mhz: float | None = None
    """Mean SM clock while the arm's samples ran; None where the device does not say."""

    head_mhz: float | None = None
    whole_s: float | None = None
    """Where samples are differences, which may be negative: median seconds of what they are a part of."""

    throttled: int = 0
    """How many pairs were dropped, because the device said that it was slowing itself down."""


@dataclass(frozen=True)
class Outcome:
    """What became of one arm, times apart."""

    status: Status

    reason: str = ""
    peak_bytes: int | None = None
    kernels: tuple[tuple[str, int, float], ...] = ()
    """Of one call: name, count, microseconds; longest first."""

    triton_kernels: tuple[dict[str, Any], ...] = ()
    """Of ours: name, registers, spills, shared_bytes, num_warps, num_stages, sass (digest of the machine code)."""

    largest_allocations: tuple[tuple[int, str], ...] = ()
    """At the peak: bytes, where."""


@dataclass
class Evidence:
    """Everything known of one case."""

    case: Case
    negligible: tuple[float, float]
    """Changes of a time up to this share, or up to these seconds, are of no interest; the class says so."""

    is_control: bool
    outcomes: dict[ArmName, Outcome] = field(default_factory=dict)
    visits: list[PairedVisit] = field(default_factory=list)
    trouble: str = ""
    """Why there are no times, or too few, though both arms are good."""

    differences: tuple[tuple[str, float, float], ...] = ()
    """Results in which the arms differ by more than rounding: name, by which share of base's norm, allowed."""

    more_peaks: list[tuple[float, float]] = field(default_factory=list)
    """Peak bytes of base and head in later processes; only where those of the first differ."""

    planted: bool = False
    """One arm was slowed down or enlarged on purpose, around the code."""

    margin: float | None = None
    """A smaller share that identical code of this very row has shown to be negligible (`perf.gate.identical`)."""

    is_drawn: bool = False
    """Drawn at random to be measured in all processes, even if it is the SAME in fewer: was that word right?"""

    @property
    def is_timed(self) -> bool:
        """Whether both arms have times."""
        return bool(self.visits) and all(outcome.status == "ok" for outcome in self.outcomes.values())

    @property
    def more_peaks_wanted(self) -> bool:
        """Whether the arms' peaks differ, and too few processes have weighed them to say so."""
        peaks = {outcome.peak_bytes for outcome in self.outcomes.values()}
        return len(self.outcomes) == len(ARMS) and None not in peaks and len(peaks) > 1 and len(self.more_peaks) < 2

    @property
    def same_code(self) -> bool:
        """Whether both arms ran the same machine code: every kernel of one call by name, count and, of ours, SASS.

        False where nothing is known, as on a CPU, and where an arm ran more than the code.
        """
        if self.planted:
            return False
        base, head = (self.outcomes.get(arm) for arm in ARMS)
        if base is None or head is None or not base.kernels or not head.kernels:
            return False
        return _code_of(base) == _code_of(head)

    def to_json(self) -> dict[str, Any]:
        """As it lies in the report."""
        return dataclasses.asdict(self)


def _code_of(outcome: Outcome) -> tuple[Any, ...]:
    named = sorted((name, count) for name, count, _ in outcome.kernels)
    ours = sorted(sorted(kernel.items()) for kernel in outcome.triton_kernels)
    if any(not kernel.get("sass") for kernel in outcome.triton_kernels):
        return (object(),)  # equal to nothing
    return named, ours
