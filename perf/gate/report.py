"""The report as a file: everything that was measured and said, for machines."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from perf.gate.evidence import Evidence
from perf.gate.verdicts import Report

VERSION = 1
"""Of the file's form."""


def to_json(report: Report, evidence: Sequence[Evidence]) -> str:
    """One document: `version`, `exit_status`, the fields of `Report`, and `evidence` with the raw samples."""
    document: dict[str, Any] = {"version": VERSION, "exit_status": report.exit_status}
    document |= dataclasses.asdict(report)
    document["evidence"] = [one.to_json() for one in evidence]
    return json.dumps(document, indent=1) + "\n"
