"""Write and read the gate's documents, which are kept beside the records: reports and self-tests."""

import contextlib
import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from perf.forms import as_object, parsed
from perf.gate.evidence import Arm, Evidence
from perf.gate.self_test_case import SelfTestCase
from perf.gate.verdicts import RULES, Report, Verdict, Visits
from perf.harness import device
from perf.harness.working_tree import RECORDS
from perf.stored import read_object

VERSION = 1
"""Version of a report."""

SELF_TEST_VERSION = 1

_STAMP = "%Y%m%dT%H%M%SZ.json"
"""Name of a document on file."""


def to_json(report: Report, evidence: Sequence[Evidence] | None = None) -> str:
    """Return `version`, `exit_status`, the fields of `Report`, and `evidence` with raw samples if given."""
    document = {"version": VERSION, "exit_status": report.exit_status} | as_object(report)
    if evidence is not None:
        document["evidence"] = [row.to_json() for row in evidence]
    return json.dumps(document, separators=(",", ":"), default=as_object) + "\n"


def own_test(version: int, arm: Arm, greeting: dict[str, Any], started: datetime.datetime, **results: Any) -> str:
    """Return the record of a test of the gate itself: a header, then `results`.

    `greeting` holds the measuring processes' device and software; it is empty before any has started.
    """
    document = {
        "version": version,
        "rules": RULES,
        "started_at": started.isoformat(timespec="seconds"),
        "commit": arm.commit,
        "device": greeting.get("device", {}),
        "software": greeting.get("software", {}),
    }
    return json.dumps(document | results, separators=(",", ":"), default=as_object) + "\n"


Kind = Literal["gate", "environment", "self-test", "mutations"]


def place(kind: Kind, when: datetime.datetime | None = None) -> Path:
    """Return the path of a document of this time in UTC, by default now, or of the next second that has none.

    Two gates of one checkout, on a GPU each, can end in the same second.
    """
    when = when or datetime.datetime.now(datetime.UTC)
    folder = RECORDS / device.machine()["machine"] / kind
    while (path := folder / when.strftime(_STAMP)).exists():
        when += datetime.timedelta(seconds=1)
    return path


class Unreadable(ValueError):
    """A document that cannot be opened, is no JSON, or has an unknown version or form."""


@dataclass(frozen=True)
class Ended(SelfTestCase):
    """A case of a self-test and its outcome."""

    contaminated: str
    """Description of the controls' movement; "" if they did not move."""

    verdicts: tuple[Verdict, ...]
    visits: Visits
    """Controls included."""

    seconds: float
    processes: int | None = None
    """Maximum number of processes of a row; None in older files."""

    memory: tuple[Verdict, ...] = ()
    """Verdicts on peak memory of a gate of identical code."""


@dataclass(frozen=True)
class SelfTest:
    """A self-test on file."""

    started_at: datetime.datetime
    """Start of the self-test, in UTC."""

    commit: str
    """40 hex digits, or "working tree"."""

    device: dict[str, Any]
    software: dict[str, Any]
    parts: tuple[Ended, ...]
    rules: str = ""
    """`RULES` that judged them; "" in older files."""


def time_of(path: Path) -> datetime.datetime:
    """Return the time, in UTC, in the name of a document on file. Raises `Unreadable` for another name."""
    try:
        return datetime.datetime.strptime(path.name, _STAMP).replace(tzinfo=datetime.UTC)
    except ValueError:
        raise Unreadable("is not named by its time") from None


def read_report(path: Path) -> Report:
    """Read a report. Raises `Unreadable`."""
    with document(path, VERSION) as found:
        report = parsed(Report, found)
        for arm in (report.base, report.head):
            parsed(Arm, arm)
        return report


def read_self_test(path: Path) -> SelfTest:
    """Read a self-test. Raises `Unreadable`."""
    with document(path, SELF_TEST_VERSION) as found:
        started = datetime.datetime.fromisoformat(parsed(str, found.get("started_at"), "started_at"))
        started = started if started.tzinfo else started.replace(tzinfo=datetime.UTC)
        return parsed(SelfTest, found | {"started_at": started.astimezone(datetime.UTC)})


@contextlib.contextmanager
def document(path: Path, version: int) -> Iterator[dict[str, Any]]:
    """Read a JSON object of a version. Raises `Unreadable`, also for errors in the body of the `with` statement."""
    try:
        found = read_object(path)
    except OSError as error:
        raise Unreadable(error.strerror or "cannot be read") from None
    except ValueError as error:
        raise Unreadable(f"is no JSON, or cut off: {error}") from None
    if (its := found.get("version")) != version:
        raise Unreadable(f"is of version {its!r:.40}; allowed: {version}")
    try:
        yield found
    except (ValueError, OverflowError) as error:
        raise Unreadable(f"is not of the form of version {version}: {error!s:.160}") from None
