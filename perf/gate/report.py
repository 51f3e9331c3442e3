"""Serialise a report, and keep it beside the records."""

import dataclasses
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from perf.gate.evidence import Arm, Evidence
from perf.gate.verdicts import Report
from perf.harness import device
from perf.harness.working_tree import RECORDS

VERSION = 1
"""Version of the file format."""


def to_json(report: Report, evidence: Sequence[Evidence] | None = None) -> str:
    """Return `version`, `exit_status`, the fields of `Report`, and `evidence` with raw samples if given."""
    document: dict[str, Any] = {"version": VERSION, "exit_status": report.exit_status}
    document |= dataclasses.asdict(report)
    if evidence is not None:
        document["evidence"] = [row.to_json() for row in evidence]
    return json.dumps(document, separators=(",", ":")) + "\n"


def own_test(version: int, arm: Arm, greeting: dict[str, Any], started: datetime.datetime, **results: Any) -> str:
    """Return the record of a test of the gate itself: a header, then `results`.

    `greeting` holds the measuring processes' device and software; it is empty before any has started.
    """
    document = {
        "version": version,
        "started_at": started.isoformat(timespec="seconds"),
        "commit": arm.commit,
        "device": greeting.get("device", {}),
        "software": greeting.get("software", {}),
    }
    return json.dumps(document | results, separators=(",", ":")) + "\n"


Kind = Literal["gate", "environment", "self-test", "mutations"]


def place(kind: Kind, when: datetime.datetime) -> Path:
    """Return the path of a document of this time, in UTC, or of the first second after it that has none.

    Two gates of one checkout, on a GPU each, can end in the same second.
    """
    folder = RECORDS / device.machine()["machine"] / kind
    while (path := folder / f"{when:%Y%m%dT%H%M%SZ}.json").exists():
        when += datetime.timedelta(seconds=1)
    return path
