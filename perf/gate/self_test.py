"""The gate put to the test on this machine: identical code has to stay the SAME, a planted slow-down to be found."""

import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from perf.gate.compare import measure
from perf.gate.evidence import Arm, Evidence
from perf.gate.parts import CPU_PARTS, PARTS, Part
from perf.gate.rate import Rate
from perf.gate.report import keep
from perf.gate.verdicts import Judgement, Verdict, Word
from perf.harness import device


def parts() -> tuple[Part, ...]:
    """Those that this machine can show."""
    return PARTS if device.machine()["gpu"] else CPU_PARTS


@dataclass(frozen=True)
class Ended:
    """What became of a part."""

    part: Part
    judgement: Judgement
    evidence: Sequence[Evidence]
    seconds: float

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


def prove(arm: Arm, rows: Callable[[], list[Evidence]], *, budget_s: float) -> None:
    """Measure `arm` against itself, part by part, on these rows; prints a table. Each part is kept as it ends."""
    from perf.gate.judge import judge

    begun, ended = datetime.datetime.now(datetime.UTC), []
    for part in parts():
        evidence = rows()
        if not any(part.shows_on(one.case.clock) for one in evidence if not one.is_control):
            click.echo(f"{part.title}: left out, since no clock of these rows would show it", err=True)
            continue
        click.echo(f"{part.title}: {len(evidence)} rows, at most {budget_s / 60:g} minutes", err=True)
        begin = time.monotonic()
        run = measure((arm, arm), evidence, budget_s=budget_s, injection=part.injection)
        ended.append(Ended(part, judge(evidence), evidence, round(time.monotonic() - begin, 1)))
        path = write(arm, ended, run.greeting.get("software", {}), run.greeting.get("device", {}), begun)
    click.echo(table(ended))
    click.echo(f"\nKept in {path}")


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
    from perf.gate.statistics import visit_change

    visits = {
        row.case.key: [[visit.process, round(visit_change(visit.base_s, visit.head_s), 7)] for visit in row.visits]
        for row in one.evidence
        if row.visits
    }
    return {
        "name": one.part.title,
        "injection": asdict(one.part.injection) if one.part.injection else None,
        "contaminated": one.judgement.contaminated,
        "seconds": one.seconds,
        "verdicts": [asdict(verdict) for verdict in one.asked],
        "visits": visits,
    }
