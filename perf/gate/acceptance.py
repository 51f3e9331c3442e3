"""Accept intended regressions: a written reason, bound to a commit, its rows and their maximum change.

Acceptances are stored in `perf/accepted.json`, which is read from HEAD, so a pull request shows its reason in its diff.
"""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click
from filelock import FileLock

from perf.files import write_aside
from perf.forms import parsed
from perf.gate.checkouts import ROOT, WORKING_TREE, git
from perf.gate.evidence import Arm
from perf.gate.verdicts import BAD, Judgement, Quantity, Report, Verdict, Word

FILE = "perf/accepted.json"


@dataclass(frozen=True)
class AcceptedRow:
    """One row that is allowed to be worse."""

    key: str
    quantity: Quantity
    word: Word
    """SLOWER, LARGER or BROKEN; one does not imply another."""

    at_most: float | None
    """Maximum accepted change, head / base - 1; None for a BROKEN row."""

    status: str = ""
    """How a BROKEN row failed when it was accepted; it covers no other failure."""

    @property
    def name(self) -> tuple[str, Quantity, Word]:
        """The row, and what is accepted of it."""
        return self.key, self.quantity, self.word

    def covers(self, verdict: Verdict) -> bool:
        """Whether this is the verdict's row and its change, or its confidence interval, reaches down to `at_most`."""
        if self.name != (verdict.key, verdict.quantity, verdict.word):
            return False
        if self.at_most is None:
            return self.status == verdict.failure
        return verdict.low is None or verdict.low <= self.at_most


@dataclass(frozen=True)
class Acceptance:
    """Regressions accepted for one commit, with the reason."""

    commit: str
    reason: str
    rows: tuple[AcceptedRow, ...]


def read(content: bytes) -> list[Acceptance]:
    """Parse the content of `perf/accepted.json`. Raises `click.ClickException` with one line if it is malformed."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(
            f"{FILE} is no JSON: {error}; allowed: a list, as python -m perf accept writes it"
        ) from None
    try:
        acceptances = parsed(list[Acceptance], document)
        for entry in document:
            _refuse_unknown_keys(entry, Acceptance)
            for row in entry["rows"]:
                _refuse_unknown_keys(row, AcceptedRow)
        for row in (row for one in acceptances for row in one.rows):
            if row.word not in BAD:
                raise ValueError(f"word is {row.word!r}; allowed: {', '.join(BAD)}")
            if row.at_most is None and row.word != "BROKEN":
                raise ValueError(f"at_most of a {row.word} row is null; allowed: a number")
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{FILE} cannot be read: {error}") from None
    return acceptances


def _refuse_unknown_keys(found: Iterable[str], form: type[Acceptance] | type[AcceptedRow]) -> None:
    known = sorted(field.name for field in dataclasses.fields(form))
    if unknown := set(found) - set(known):
        raise ValueError(f"an {form.__name__} has {min(unknown)!r}; allowed: {', '.join(known)}")


def in_checkout() -> list[Acceptance]:
    """Read this checkout's file; an absent file holds no acceptances. Raises like `read`."""
    try:
        content = (ROOT / FILE).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise click.ClickException(f"{FILE} cannot be read: {error.strerror}; allowed: a file, or none") from None
    return read(content)


def between(base: Arm, head: Arm) -> list[Acceptance]:
    """Return the acceptances in HEAD's file for commits that HEAD contains and BASE does not."""
    if head.commit == WORKING_TREE:
        tip, acceptances = "HEAD", in_checkout()
    else:
        tip = head.commit
        shown = git("show", f"{tip}:{FILE}")
        acceptances = [] if shown.returncode else read(shown.stdout)
    commits = set(git("rev-list", f"{base.commit}..{tip}").stdout.decode().split())
    return [acceptance for acceptance in acceptances if acceptance.commit in commits]


def applied(judgement: Judgement, acceptances: Iterable[Acceptance]) -> Judgement:
    """Add the reason to each covered verdict; words and numbers stay."""
    reasons = [(row, acceptance.reason) for acceptance in acceptances for row in acceptance.rows]
    return dataclasses.replace(
        judgement,
        verdicts=tuple(
            dataclasses.replace(verdict, accepted=next((reason for row, reason in reasons if row.covers(verdict)), ""))
            for verdict in judgement.verdicts
        ),
    )


def of_report(report: Report, reason: str) -> Acceptance:
    """Accept every regression of a report that is believed and not yet accepted.

    Raises `click.ClickException` with one line if there is none, or no commit to bind the reason to.
    """
    commit = report.head["commit"]
    if commit == WORKING_TREE:
        raise click.ClickException("the report is of a working tree; allowed: a report of a commit")
    bad = [verdict for verdict in report.judgement.believed if verdict.is_bad]
    for verdict in bad:
        if verdict.failure == "wrong":
            raise click.ClickException(f"{verdict.key} is {verdict.reason}: no wrong result can be accepted")
        if verdict.word != "BROKEN" and verdict.high is None:
            raise click.ClickException(f"{verdict.key} is {verdict.word} by no share that could be accepted")
    rows = tuple(
        AcceptedRow(verdict.key, verdict.quantity, verdict.word, verdict.high, verdict.failure) for verdict in bad
    )
    if not rows:
        raise click.ClickException("the report judges no row slower, larger or broken: nothing to accept")
    return Acceptance(commit, reason, rows)


def _to_json(one: Acceptance) -> dict[str, Any]:
    rows = [{name: value for name, value in dataclasses.asdict(row).items() if value != ""} for row in one.rows]
    return dataclasses.asdict(one) | {"rows": rows}


def add(new: Acceptance) -> None:
    """Add to the file of this checkout; what was accepted of the same rows of this commit is replaced.

    Raises like `read`, and writes nothing, if the file could not be read again.
    """
    folder = ROOT / ".asv"
    try:
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / "accepted.lock").acquire()
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be written: {error.strerror}") from None
    with lock:  # of two at once neither is lost
        new_rows = {row.name for row in new.rows}
        older = [
            dataclasses.replace(one, rows=tuple(row for row in one.rows if row.name not in new_rows))
            if one.commit == new.commit
            else one
            for one in in_checkout()
        ]
        kept = [_to_json(one) for one in [*older, new] if one.rows]
        text = json.dumps(kept, indent=1) + "\n"
        read(text.encode())
        write_aside(ROOT / FILE, text)
