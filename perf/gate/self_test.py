"""The gate put to the test on this machine: identical code has to stay the SAME, a planted slow-down to be found."""

import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from perf.gate.compare import measure
from perf.gate.evidence import Arm, Evidence
from perf.gate.parts import PLANTED, PLANTED_ON_CPU, Part
from perf.gate.rate import Rate
from perf.gate.report import keep
from perf.gate.verdicts import Judgement, Verdict, Word
from perf.harness import device


def planting(shares: Sequence[float] = ()) -> tuple[Part, ...]:
    """What is planted on this machine: slow-downs of these shares where its clocks see them; by default, all kinds."""
    gpu = bool(device.machine()["gpu"])
    if not shares:
        return PLANTED if gpu else PLANTED_ON_CPU
    return tuple(Part.planting("device" if gpu else "host", share) for share in shares)


@dataclass(frozen=True)
class Ended:
    """What became of a part."""

    part: Part
    judgement: Judgement
    evidence: Sequence[Evidence]
    seconds: float
    processes: int
    """Most that a row was measured in."""

    @property
    def asked(self) -> list[Verdict]:
        """The rows that the part is about: bytes if it plants bytes, else times, where they can show it."""
        quantity = "peak_memory" if self.part.wanted == "LARGER" else "time"
        clocks = {one.case.key: one.case.clock for one in self.evidence}
        return [
            one for one in self.judgement.verdicts if one.quantity == quantity and self.part.shows_on(clocks[one.key])
        ]

    @property
    def rate(self) -> Rate:
        """Of rows found; of identical code falsely, and of those that could have shown a slow-down at all."""
        could = [one for one in self.asked if self.part.injection or one.smallest_visible is not None]
        return Rate(sum(one.word == self.part.wanted for one in could), len(could))

    def count(self, word: Word) -> int:
        """How many of them were called so."""
        return sum(one.word == word for one in self.asked)


def prove(arm: Arm, rows: Callable[[], list[Evidence]], planting: Sequence[Part], *, budget_s: float) -> None:
    """Measure `arm` against itself, part by part, on these rows; prints a table. Each part is kept as it ends.

    `planting`: the parts after identical code. What they plant is in all rows at once, to save time, but each row is
    judged as the only one that changed: beside the identical code of the others.
    """
    from perf.gate.judge import judge

    begun, ended, identical = datetime.datetime.now(datetime.UTC), [], list[Evidence]()
    for part in (Part(None), *planting):
        evidence = rows()
        if not any(part.shows_on(one.case.clock) for one in evidence if not one.is_control):
            click.echo(f"{part.title}: left out, since no clock of these rows would show it", err=True)
            continue
        click.echo(f"{part.title}: {len(evidence)} rows, at most {budget_s / 60:g} minutes", err=True)
        begin = time.monotonic()
        one_at_a_time = OneAtATime(identical) if part.injection else None
        run = measure(
            (arm, arm),
            evidence,
            budget_s=budget_s,
            injection=part.injection,
            is_open=one_at_a_time.open_rows if one_at_a_time else None,
        )
        judgement = one_at_a_time.judge(evidence) if one_at_a_time else judge(evidence)
        ended.append(Ended(part, judgement, evidence, round(time.monotonic() - begin, 1), run.processes))
        identical = identical or evidence
        path = write(arm, ended, run.greeting.get("software", {}), run.greeting.get("device", {}), begun)
    click.echo(table(ended))
    click.echo(f"\nKept in {path}")


@dataclass(frozen=True)
class OneAtATime:
    """Judges rows that were all slowed down as if each were the only one of its report.

    The others, and the controls beside them, are those of identical code; together the slowed ones would relax what
    false discoveries cost.
    """

    identical: Sequence[Evidence]

    def judge(self, evidence: Sequence[Evidence]) -> Judgement:
        """The verdicts of all reports, a row of each; contaminated where the controls of `evidence` moved."""
        from perf.gate.judge import judge

        together = judge(evidence)
        verdicts = [
            verdict
            for one in evidence
            if not one.is_control
            for verdict in judge(self._report(one, evidence)).verdicts
            if verdict.key == one.case.key
        ]
        return replace(together, verdicts=tuple(verdicts))

    def open_rows(self, evidence: Sequence[Evidence]) -> list[Evidence]:
        """Those that are open in their own report, and the controls as long as there are any."""
        from perf.gate.judge import open_rows

        found = [
            one
            for one in evidence
            if not one.is_control and any(row is one for row in open_rows(self._report(one, evidence)))
        ]
        return found + [one for one in evidence if one.is_control and found]

    def _report(self, planted: Evidence, evidence: Sequence[Evidence]) -> list[Evidence]:
        others = [one for one in self.identical if not one.is_control and one.case.key != planted.case.key]
        return [planted, *others, *(one for one in evidence if one.is_control)]


def table(ended: Sequence[Ended]) -> str:
    """A row a part; of the wanted word the rate, with an exact 95 % bound (Clopper and Pearson 1934)."""
    from tabulate import tabulate

    rows = []
    for one in ended:
        rows.append(
            {
                "planted": one.part.title,
                "rows": len(one.asked),
                "SLOWER": one.count("SLOWER"),
                "LARGER": one.count("LARGER"),
                "FASTER": one.count("FASTER"),
                "AMBIGUOUS": one.count("AMBIGUOUS"),
                "SAME": one.count("SAME"),
                "": one.rate.words(at_most=one.part.injection is None),
                "controls": "moved" if one.judgement.contaminated else "held",
                "processes": one.processes,
                "took": f"{one.seconds:.0f} s",
            }
        )
    return tabulate(rows, headers="keys", disable_numparse=True)


def write(
    arm: Arm, ended: Sequence[Ended], software: dict[str, Any], found: dict[str, Any], begun: datetime.datetime
) -> Path:
    """A document beside the records of this machine: `<machine>/self-test/<begun>.json`; returns its path."""
    document = {
        "version": 1,
        "started_at": begun.isoformat(timespec="seconds"),
        "commit": arm.commit,
        "device": found,
        "software": software,
        "parts": [_part(one) for one in ended],
    }
    return keep("self-test", json.dumps(document, separators=(",", ":")) + "\n", begun)


def _part(one: Ended) -> dict[str, Any]:
    from perf.gate.judge import visits

    return {
        "name": one.part.title,
        "injection": asdict(one.part.injection) if one.part.injection else None,
        "contaminated": one.judgement.contaminated,
        "seconds": one.seconds,
        "processes": one.processes,
        "verdicts": [asdict(verdict) for verdict in one.asked],
        "visits": visits(one.evidence),
    }
