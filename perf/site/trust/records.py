"""Self-tests on file, `<machine>/self-test/<time>.json`, validated as untrusted input.

Written by `perf.gate.self_test`. What is cut in half, of another version or of another form is named and skipped.
A gate of a commit against itself, `<machine>/gate/<time>.json`, is a self-test of identical code too; and of any gate
the rows count that were the SAME and drawn at random to be measured on.
"""

from pathlib import Path

from perf.gate.rate import Rate
from perf.gate.report import Ended, SelfTest, read_self_test
from perf.site import gates, kept


def read(directory: Path, machine: str) -> tuple[list[SelfTest], list[tuple[str, str]]]:
    """Read a machine's self-tests, oldest first, and name and reason of each unreadable file. Raises nothing."""
    found, skipped = kept.read_folder(directory / machine / "self-test", read_self_test)
    found += [_of(gate) for gate in gates.read(directory, machine)[0] if gate.report.is_of_identical_code]
    return sorted(found, key=lambda one: one.started_at), skipped


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
    identical = Ended(
        None, report.judgement.contaminated, times, report.visits, report.seconds, report.processes, memory
    )
    return SelfTest(gate.when, report.head["commit"], report.device, report.software, (identical,))
