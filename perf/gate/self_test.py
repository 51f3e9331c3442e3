"""Test the gate on this machine: identical code must stay SAME, and planted slow-downs must be detected."""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from perf.files import write_measured
from perf.gate.compare import measure
from perf.gate.evidence import Arm, Evidence
from perf.gate.judge import judge, open_rows, visits
from perf.gate.rate import Rate
from perf.gate.report import SELF_TEST_VERSION, own_test, place
from perf.gate.self_test_case import PLANTED, PLANTED_ON_CPU, SelfTestCase
from perf.gate.verdicts import Judgement, Verdict, Word
from perf.harness import device
from perf.tables import text_table


def planting(shares: Sequence[float] = ()) -> tuple[SelfTestCase, ...]:
    """Return the changes to plant on this machine: slow-downs by `shares`, or the default set."""
    gpu = bool(device.machine()["gpu"])
    if not shares:
        return PLANTED if gpu else PLANTED_ON_CPU
    return tuple(SelfTestCase.planting("device" if gpu else "host", share) for share in shares)


@dataclass(frozen=True)
class SelfTestResult:
    """Result of one self-test case."""

    case: SelfTestCase
    judgement: Judgement
    evidence: Sequence[Evidence]
    seconds: float
    processes: int
    """Maximum number of processes that measured a row."""

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts that the case is about: bytes if it plants bytes, else times of clocks that can show the change."""
        quantity = "peak_memory" if self.case.wanted == "LARGER" else "time"
        clocks = {row.case.key: row.case.clock for row in self.evidence}
        return [
            verdict
            for verdict in self.judgement.verdicts
            if verdict.quantity == quantity and self.case.shows_on(clocks[verdict.key])
        ]

    @property
    def rate(self) -> Rate:
        """Detection rate; on identical code the rate of false alarms, among rows with a minimum detectable change."""
        counted = [verdict for verdict in self.verdicts if self.case.injection or verdict.min_detectable is not None]
        return Rate(sum(verdict.word == self.case.wanted for verdict in counted), len(counted))

    def count(self, word: Word) -> int:
        """Count the verdicts with this word."""
        return sum(verdict.word == word for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return the form on record, with dataclasses that `own_test` writes."""
        return {
            "name": self.case.title,
            "injection": self.case.injection,
            "contaminated": self.judgement.contaminated,
            "seconds": self.seconds,
            "processes": self.processes,
            "verdicts": self.verdicts,
            "visits": visits(self.evidence),
        }


def prove(
    arm: Arm,
    places: tuple[Path, Path],
    rows: Callable[[], list[Evidence]],
    planting: Sequence[SelfTestCase],
    *,
    budget_s: float,
) -> None:
    """Measure `arm`, which is in both folders, against itself, as it is and per planted change, and print a table.

    Every row of a run carries the planted change, which saves time, but each is judged as the only changed row of its
    report, beside the other rows' identical code. The record is rewritten after each run.
    """
    started, results, identical = datetime.datetime.now(datetime.UTC), [], list[Evidence]()
    path: Path | None = None
    for case in (SelfTestCase(None), *planting):
        evidence = rows()
        if not any(case.shows_on(row.case.clock) for row in evidence if not row.is_control):
            click.echo(f"{case.title}: skipped, since no clock of these rows can show it", err=True)
            continue
        click.echo(f"{case.title}: {len(evidence)} rows, at most {budget_s / 60:g} minutes", err=True)
        begin = time.monotonic()
        alone = OneAtATime(identical) if case.injection else None
        run = measure(
            (arm, arm),
            places,
            evidence,
            budget_s=budget_s,
            injection=case.injection,
            is_open=alone.open_rows if alone else open_rows,
        )
        judgement = alone.judge(evidence) if alone else judge(evidence)
        results.append(SelfTestResult(case, judgement, evidence, round(time.monotonic() - begin, 1), run.processes))
        identical = identical or evidence
        parts = [result.to_json() for result in results]
        record = own_test(SELF_TEST_VERSION, arm, run.greeting, started, parts=parts)
        path = path or place("self-test", started)
        write_measured({path: record})
    click.echo(table(results))
    click.echo(f"\nKept in {path}")


@dataclass(frozen=True)
class OneAtATime:
    """Judge rows that all carry a planted change as if each were the only changed row of its report.

    The other rows come from identical code; judged together, the changed rows would relax the false discovery rate.
    """

    identical: Sequence[Evidence]

    def judge(self, evidence: Sequence[Evidence]) -> Judgement:
        """Collect each row's verdict from its own report; contaminated if the controls of `evidence` moved."""
        verdicts = [
            verdict
            for row in evidence
            if not row.is_control
            for verdict in judge(self._report(row, evidence)).verdicts
            if verdict.key == row.case.key
        ]
        return replace(judge(evidence), verdicts=tuple(verdicts))

    def open_rows(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """Return the rows that are undecided in their own report, followed by the controls if there are any."""
        undecided = [
            row
            for row in evidence
            if not row.is_control and any(other is row for other in open_rows(self._report(row, evidence)))
        ]
        return undecided + [row for row in evidence if row.is_control and undecided]

    def _report(self, planted: Evidence, evidence: Sequence[Evidence]) -> list[Evidence]:
        others = [row for row in self.identical if not row.is_control and row.case.key != planted.case.key]
        return [planted, *others, *(row for row in evidence if row.is_control)]


def table(results: Sequence[SelfTestResult]) -> str:
    """Format a row per case; the rate of the wanted word has an exact 95 % bound (Clopper and Pearson 1934)."""
    rows = [
        {
            "planted": result.case.title,
            "rows": len(result.verdicts),
            **{word: result.count(word) for word in ("SLOWER", "LARGER", "FASTER", "AMBIGUOUS", "SAME")},
            "": result.rate.words(at_most=result.case.injection is None),
            "controls": "moved" if result.judgement.contaminated else "held",
            "processes": result.processes,
            "took": f"{result.seconds:.0f} s",
        }
        for result in results
    ]
    return text_table(rows)
