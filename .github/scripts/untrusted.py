"""Read what the GPU machine wrote as data, whose texts `perf` shows as text."""

import json
from typing import TypeVar

from github import COMMIT, RefusedError, shown

from perf.forms import parsed
from perf.gate.evidence import Arm
from perf.gate.verdicts import Report

Parsed = TypeVar("Parsed")


def read_report(text: str | bytes, name: str) -> Report:
    """Parse the report of a gate. Raises RefusedError, with `name`, unless all of it is of its type."""
    report = read(Report, text, name)
    for arm in (report.base, report.head):
        commit = _of_type(Arm, arm, name).commit
        if not COMMIT.fullmatch(commit):
            raise RefusedError(f"{name} is of commit {shown(commit)}; allowed: 40 hexadecimal digits")
    return report


def read(kind: type[Parsed], text: str | bytes, name: str) -> Parsed:
    """Parse JSON of a type. Raises RefusedError, with `name`, if it is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError(f"{name} is not JSON") from None
    return _of_type(kind, document, name)


def _of_type(kind: type[Parsed], document: object, name: str) -> Parsed:
    try:
        return parsed(kind, document)
    except ValueError as error:
        raise RefusedError(f"{name} is not what perf writes: {shown(error)}") from None
