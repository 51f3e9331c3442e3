"""The parts of a self-test: what is planted in one arm, and the word that finds it."""

from dataclasses import dataclass

from perf.gate.evidence import DEVICE_CLOCKS
from perf.gate.verdicts import Word
from perf.harness.case import ClockName
from perf.harness.injection import KINDS, Injection


@dataclass(frozen=True)
class Part:
    """One gate of a commit against itself."""

    injection: Injection | None
    """What slows the head down; None: nothing does."""

    @classmethod
    def planting(cls, kind: str, size: float) -> "Part":
        """That plants so much of this kind. Raises `ValueError` for an unknown kind."""
        return cls(Injection(kind, size))  # type: ignore[arg-type]

    @property
    def title(self) -> str:
        """ "2 % on the device"."""
        return self.injection.title if self.injection else "identical code"

    @property
    def wanted(self) -> Word:
        """The word that finds what was planted; among identical code, the false one."""
        return "LARGER" if self.injection and self.injection.kind == "memory" else "SLOWER"

    def shows_on(self, clock: ClockName) -> bool:
        """Whether this clock sees what is planted; first_call times a process that is gone, where nothing is."""
        if self.injection is None or self.injection.kind == "memory":
            return True
        return clock != "first_call" and not (self.injection.kind == "host" and clock in DEVICE_CLOCKS)

    @property
    def place(self) -> tuple[int, float]:
        """In a table: nothing planted first, then by kind and size."""
        return (list(KINDS).index(self.injection.kind), self.injection.size) if self.injection else (-1, 0.0)


PLANTED = (
    Part(Injection("device", 0.005)),
    Part(Injection("device", 0.01)),
    Part(Injection("device", 0.02)),
    Part(Injection("device", 0.05)),
    Part(Injection("host", 0.05)),
    Part(Injection("memory", 2**20)),
)

PLANTED_ON_CPU = (Part(Injection("host", 0.3)),)
"""What a CPU can show: its rows call 10 % negligible, and its memory is not counted."""
