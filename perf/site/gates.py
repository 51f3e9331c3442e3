"""Gate reports on file, `<machine>/gate/<time>.json`."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perf.gate.report import read_report, time_of
from perf.gate.verdicts import Report
from perf.site import kept


@dataclass(frozen=True)
class Gate:
    """A gate report on file."""

    when: datetime
    """End of the gate, in UTC."""

    report: Report


def read(directory: Path, machine: str) -> tuple[list[Gate], list[tuple[str, str]]]:
    """Read a machine's gates, newest first, and name and reason of each unreadable file. Raises nothing."""
    found, skipped = kept.read_folder(directory / machine / "gate", lambda path: Gate(time_of(path), read_report(path)))
    return sorted(found, key=lambda one: one.when, reverse=True), skipped
