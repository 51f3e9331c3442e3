"""Define the cases of a self-test: the change planted in one arm, and the verdict that detects it."""

from dataclasses import dataclass

from perf.gate.evidence import DEVICE_CLOCKS
from perf.gate.verdicts import Word
from perf.harness.case import ClockName
from perf.harness.injection import KINDS, Injection


@dataclass(frozen=True)
class SelfTestCase:
    """One A/A run, with or without a planted change."""

    injection: Injection | None
    """Change planted in head; None for identical code."""

    @classmethod
    def planting(cls, kind: str, size: float) -> "SelfTestCase":
        """Plant a change of this kind and size. Raises `ValueError` for an unknown kind."""
        return cls(Injection(kind, size))  # type: ignore[arg-type]

    @property
    def title(self) -> str:
        """Title, such as "2 % on the device"."""
        return self.injection.title if self.injection else "identical code"

    @property
    def wanted(self) -> Word:
        """Word that detects the planted change; a false alarm on identical code."""
        return "LARGER" if self.injection and self.injection.kind == "memory" else "SLOWER"

    def shows_on(self, clock: ClockName) -> bool:
        """Whether this clock measures what is planted; first_call times a process that ran without the plant."""
        if self.injection is None or self.injection.kind == "memory":
            return True
        return clock not in ("first_call", *(DEVICE_CLOCKS if self.injection.kind == "host" else ("host",)))

    @property
    def place(self) -> tuple[int, float]:
        """Sort key of a table: identical code first, then by kind and size."""
        return (list(KINDS).index(self.injection.kind), self.injection.size) if self.injection else (-1, 0.0)


PLANTED = (
    SelfTestCase(Injection("device", 0.005)),
    SelfTestCase(Injection("device", 0.01)),
    SelfTestCase(Injection("device", 0.02)),
    SelfTestCase(Injection("device", 0.05)),
    SelfTestCase(Injection("host", 0.05)),
    SelfTestCase(Injection("memory", 2**20)),
)

PLANTED_ON_CPU = (SelfTestCase(Injection("host", 0.3)),)
"""Cases for a machine without a GPU: its rows call 10 % negligible, and its memory is not measured."""
