"""Self-tests on file, `<machine>/self-test/<time>.json`, validated as untrusted input.

Written by `perf.gate.self_test`. What is cut in half, of another version or of another form is named and skipped.
A gate of a commit against itself, `<machine>/gate/<time>.json`, is a self-test of identical code too; and of any gate
the rows count that were the SAME and drawn at random to be measured on.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf.gate.rate import Rate
from perf.gate.self_test_case import SelfTestCase
from perf.gate.verdicts import Verdict, Visits
from perf.site import gates, kept

VERSION = 1


@dataclass(frozen=True)
class Ended(SelfTestCase):
    """A case of a self-test and its outcome."""

    contaminated: str
    """Description of the controls' movement; "" if they did not move."""

    verdicts: tuple[Verdict, ...]
    changes: Visits
    """Controls included. Of identical code only."""

    processes: int | None
    """Maximum number of processes of a row; None in older files."""

    memory: tuple[Verdict, ...] = ()
    """Verdicts on peak memory of a gate of identical code."""


@dataclass(frozen=True)
class SelfTest:
    """A self-test file."""

    started_at: datetime
    """Start of the self-test, in UTC."""

    commit: str
    """40 hex digits, or "working tree"."""

    device: dict[str, Any]
    software: dict[str, Any]
    parts: tuple[Ended, ...]


def read(directory: Path, machine: str) -> tuple[list[SelfTest], list[tuple[str, str]]]:
    """Read a machine's self-tests, oldest first, and name and reason of each unreadable file. Raises nothing."""
    found, skipped = kept.read_folder(directory / machine / "self-test", parse)
    tests = [test for _, test in found] + [
        _of(gate) for gate in gates.read(directory, machine)[0] if gate.is_of_identical_code
    ]
    return sorted(tests, key=lambda one: one.started_at), skipped


def drawn(directory: Path, machine: str) -> Rate:
    """Return the rate of SAME rows, drawn at random for all processes, that kept their verdict, over all gates on file.

    Raises nothing.
    """
    rows = [
        verdict
        for gate in gates.read(directory, machine)[0]
        if not gate.report.judgement.contaminated
        for verdict in gate.report.judgement.verdicts
        if verdict.was_same
    ]
    return Rate(sum(one.word == "SAME" for one in rows), len(rows))


def _of(gate: gates.Gate) -> SelfTest:
    """Convert an A/A gate to a self-test."""
    report = gate.report
    times = tuple(one for one in report.judgement.verdicts if one.quantity == "time")
    memory = tuple(one for one in report.judgement.verdicts if one.quantity == "peak_memory" and one.base is not None)
    identical = Ended(None, report.judgement.contaminated, times, report.visits, report.processes, memory)
    return SelfTest(gate.when, report.head["commit"], report.device, report.software, (identical,))


def parse(text: str) -> SelfTest:
    """Parse a file's contents. Raises `kept.Unreadable`, or ValueError or RecursionError if it is not JSON."""
    with kept.document(text, VERSION) as document:
        when = datetime.fromisoformat(kept.text(document["started_at"]))
        return SelfTest(
            (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC),
            kept.text(document["commit"]),
            dict(document["device"]),
            dict(document["software"]),
            tuple(_part(one) for one in document["parts"]),
        )


def _part(one: dict[str, Any]) -> Ended:
    planted = one["injection"]
    visits = {} if planted else one["visits"]
    return Ended(
        _part_planting(kept.text(planted["kind"]), kept.number(planted["size"])).injection if planted else None,
        kept.text(one["contaminated"]),
        tuple(kept.verdict(verdict) for verdict in one["verdicts"]),
        kept.visits(visits),
        None if one.get("processes") is None else int(kept.number(one["processes"])),
    )


def _part_planting(kind: str, size: float) -> SelfTestCase:
    try:
        return SelfTestCase.planting(kind, size)
    except ValueError as error:
        raise kept.Unreadable(f"plants what this page does not know: {error}") from None
