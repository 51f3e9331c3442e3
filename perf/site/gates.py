"""Gate reports on file, `<machine>/gate/<time>.json`."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf.gate.verdicts import Judgement, Report, Unreached
from perf.printable import shortened
from perf.site import kept

VERSION = 1


@dataclass(frozen=True)
class Gate:
    """A gate report on file."""

    when: datetime
    """End of the gate, in UTC."""

    report: Report

    @property
    def is_of_identical_code(self) -> bool:
        """Whether both arms are the same commit (an A/A gate)."""
        return bool(self.report.base["commit"] == self.report.head["commit"])


def read(directory: Path, machine: str) -> tuple[list[Gate], list[tuple[str, str]]]:
    """Read a machine's gates, newest first, and name and reason of each unreadable file. Raises nothing."""
    found, skipped = kept.read_folder(directory / machine / "gate", parse)
    gates = []
    for name, report in found:
        try:
            when = datetime.strptime(name, "%Y%m%dT%H%M%SZ.json").replace(tzinfo=UTC)
        except ValueError:
            skipped.append((name, "is not named by its time"))
            continue
        gates.append(Gate(when, report))
    return sorted(gates, key=lambda one: one.when, reverse=True), sorted(skipped)


def parse(text: str) -> Report:
    """Parse a file's contents. Raises `kept.Unreadable`, or ValueError or RecursionError if it is not JSON."""
    with kept.document(text, VERSION) as document:
        judgement = document["judgement"]
        return Report(
            base=_arm(document["base"]),
            head=_arm(document["head"]),
            judgement=Judgement(
                tuple(kept.verdict(one, accepted=kept.text(one.get("accepted", ""))) for one in judgement["verdicts"]),
                kept.text(judgement["contaminated"]),
                kept.text(judgement.get("unwatched", "")),
                int(kept.number(judgement.get("cut_short", 0))),
            ),
            without=tuple((kept.text(reason), int(kept.number(count))) for reason, count in document["without"]),
            device=dict(document["device"]),
            software=dict(document["software"]),
            head_software=dict(document["head_software"]),
            command=kept.text(document["command"]),
            seconds=kept.number(document["seconds"]),
            spent_s={kept.text(what): kept.number(s) for what, s in document["spent_s"].items()},
            processes=int(kept.number(document["processes"])),
            tests_passed=bool(document["tests_passed"]),
            tests=kept.text(document["tests"]),
            differences=tuple((kept.text(key), kept.text(how)) for key, how in document.get("differences", ())),
            visits=kept.visits(document.get("visits", {})),
            unreached=_unreached(document.get("unreached", {})),
        )


def _unreached(document: dict[str, Any]) -> Unreached:
    skipped, sampled = (tuple(map(kept.text, document.get(name, ()))) for name in ("skipped", "sampled"))
    return Unreached(skipped, sampled, kept.text(document.get("why_none", "")))


def _arm(one: dict[str, Any]) -> dict[str, str]:
    return {"commit": kept.text(one["commit"]), "subject": shortened(kept.text(one["subject"]))}
