"""Evidence of a gate: plain data that the measuring processes fill and that nobody has judged yet."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perf.harness.case import ARMS, ArmName, Case
from perf.harness.status import Status

DEVICE_CLOCKS = ("cuda_events", "cuda_graph", "device_busy")
"""Clocks that exclude the host's share of the time."""


@dataclass(frozen=True)
class Arm:
    """One of the two commits under comparison."""

    commit: str
    """40 hex digits, or "working tree"."""

    subject: str
    """First line of the commit message."""

    python: str = ""
    """Python executable of the arm's own environment; "" means the running interpreter."""


@dataclass(frozen=True)
class PairedVisit:
    """Samples of one visit to a case in one process; the arms alternate sample by sample (A B B A ...)."""

    process: int
    visit: int
    base_s: tuple[float, ...]
    """Seconds in sampling order; `head_s[i]` was sampled next to `base_s[i]`."""

    head_s: tuple[float, ...]
    base_mhz: float | None = None
    """Mean SM clock during the arm's samples; None if the device does not report it."""

    head_mhz: float | None = None
    whole_s: float | None = None
    """Median seconds of the enclosing step, for samples that are differences and may be negative; else None."""

    throttled: int = 0
    """Number of pairs dropped because the device reported throttling."""


@dataclass(frozen=True)
class Outcome:
    """Result of one arm apart from its times: status, memory, kernels."""

    status: Status

    reason: str = ""
    peak_bytes: int | None = None
    kernels: tuple[tuple[str, int, float], ...] = ()
    """Kernels of one call, longest first: name, launch count, microseconds."""

    triton_kernels: tuple[dict[str, Any], ...] = ()
    """Compiled Triton kernels: name, registers, spills, shared_bytes, num_warps, num_stages, sass (a digest)."""

    largest_allocations: tuple[tuple[int, str], ...] = ()
    """Largest live allocations at the memory peak: bytes, source location."""

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> "Outcome":
        """Read a visit's reply, or its line on record."""
        return cls(
            reply["status"],
            reply["reason"],
            reply.get("peak_bytes"),
            tuple(tuple(kernel) for kernel in reply.get("kernels", ())),
            tuple(reply.get("triton_kernels", ())),
            tuple(tuple(one) for one in reply.get("largest_allocations", ())),
        )

    @property
    def works(self) -> bool:
        """Whether the arm ran correctly; a throttled arm did, although it has no times."""
        return self.status in ("ok", "throttled")

    @property
    def failure(self) -> str:
        """Status and reason in one clause."""
        return f"{self.status}: {self.reason}" if self.reason else self.status


@dataclass
class Evidence:
    """Everything measured for one case."""

    case: Case
    negligible: tuple[float, float]
    """Share of the time and seconds below which a change is ignored; declared by the benchmark class."""

    is_control: bool
    outcomes: dict[ArmName, Outcome] = field(default_factory=dict)
    visits: list[PairedVisit] = field(default_factory=list)
    trouble: str = ""
    """Reason for missing or too few times although both arms work."""

    differences: tuple[tuple[str, float, float], ...] = ()
    """Results that differ between the arms by more than rounding: name, share of base's norm, tolerance."""

    more_peaks: list[tuple[float, float]] = field(default_factory=list)
    """Peak bytes of base and head in later processes; recorded only if the first process's peaks differ."""

    planted: bool = False
    """Whether the self-test slowed down or enlarged one arm around the code."""

    margin: float | None = None
    """Negligible share derived from A/A runs of this very case (`perf.gate.aa_runs`)."""

    is_drawn: bool = False
    """Whether the case was drawn at random to be measured in all processes, to check an early SAME."""

    @property
    def is_timed(self) -> bool:
        """Whether both arms have times."""
        return bool(self.visits) and all(outcome.status == "ok" for outcome in self.outcomes.values())

    @property
    def more_peaks_wanted(self) -> bool:
        """Whether the arms' peaks differ and fewer than three processes have measured them."""
        peaks = {outcome.peak_bytes for outcome in self.outcomes.values()}
        return len(self.outcomes) == len(ARMS) and None not in peaks and len(peaks) > 1 and len(self.more_peaks) < 2

    @property
    def same_code(self) -> bool:
        """Whether both arms ran the same machine code: kernel names, launch counts and Triton SASS digests agree.

        False if kernels are unknown, as on a CPU, and if the self-test planted a change around the code.
        """
        if self.planted:
            return False
        base, head = (self.outcomes.get(arm) for arm in ARMS)
        if base is None or head is None or not base.kernels or not head.kernels:
            return False
        return _machine_code(base) == _machine_code(head)

    def to_json(self) -> dict[str, Any]:
        """Return the form that the report stores."""
        return dataclasses.asdict(self)


def _machine_code(outcome: Outcome) -> tuple[Any, ...]:
    launches = sorted((name, count) for name, count, _ in outcome.kernels)
    compiled = sorted(sorted(kernel.items()) for kernel in outcome.triton_kernels)
    if any(not kernel.get("sass") for kernel in outcome.triton_kernels):
        return (object(),)  # unknown code equals nothing
    return launches, compiled
