"""Regressions that somebody meant: a written reason, bound to a commit, its rows and how much worse they may be.

They lie in `perf/accepted.json`, which is read from HEAD, so that a pull request shows its reason among its changes.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import click

from perf.files import write_aside
from perf.gate.checkouts import ROOT, WORKING_TREE, git
from perf.gate.evidence import Arm
from perf.gate.verdicts import BAD, Judgement, Quantity, Verdict, Word

FILE = "perf/accepted.json"


@dataclass(frozen=True)
class Row:
    """One row that may be worse."""

    key: str
    quantity: Quantity
    word: Word
    """SLOWER, LARGER or BROKEN: one does not stand for another."""

    at_most: float | None
    """Largest accepted change, head / base - 1; None of a row that is BROKEN."""

    def covers(self, verdict: Verdict) -> bool:
        """Whether this is the row, and its change, or what noise may have made of it, lies within what was accepted."""
        same = (self.key, self.quantity, self.word) == (verdict.key, verdict.quantity, verdict.word)
        return same and (self.at_most is None or verdict.low is None or verdict.low <= self.at_most)


@dataclass(frozen=True)
class Acceptance:
    """What one commit was allowed, and why."""

    commit: str
    reason: str
    rows: tuple[Row, ...]


def read(text: str) -> list[Acceptance]:
    """The acceptances in the text of `perf/accepted.json`. Raises `click.ClickException` if it is not of its form."""
    try:
        return [
            Acceptance(one["commit"], _words(one["reason"]), tuple(_row(row) for row in one["rows"]))
            for one in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise click.ClickException(f"{FILE} cannot be read: {type(error).__name__}: {error}") from None


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"reason is {value!r}; allowed: text")
    return value


def _row(fields: dict[str, Any]) -> Row:
    row = Row(**fields)
    if not isinstance(row.at_most, float | int | None):
        raise TypeError(f"at_most is {row.at_most!r}; allowed: a number or null")
    for field, allowed in (("quantity", get_args(Quantity)), ("word", BAD)):
        if getattr(row, field) not in allowed:
            raise ValueError(f"{field} is {getattr(row, field)!r}; allowed: {', '.join(allowed)}")
    return row


def in_checkout() -> list[Acceptance]:
    """Those in the file as it lies in this checkout; none without a file. Raises as `read`."""
    path = ROOT / FILE
    return read(path.read_text()) if path.exists() else []


def between(base: Arm, head: Arm) -> list[Acceptance]:
    """Those that HEAD's own file holds for commits that HEAD has and BASE has not."""
    if head.commit == WORKING_TREE:
        tip, found = "HEAD", in_checkout()
    else:
        tip = head.commit
        found = read(git("show", f"{tip}:{FILE}").stdout.decode(errors="replace") or "[]")
    commits = set(git("rev-list", f"{base.commit}..{tip}").stdout.decode().split())
    return [one for one in found if one.commit in commits]


def applied(judgement: Judgement, acceptances: Iterable[Acceptance]) -> Judgement:
    """The judgement with the reason at each worse row that is covered; the words and the numbers stay."""
    reasons = [(row, one.reason) for one in acceptances for row in one.rows]
    return dataclasses.replace(
        judgement,
        verdicts=tuple(
            dataclasses.replace(one, accepted=next((reason for row, reason in reasons if row.covers(one)), ""))
            for one in judgement.verdicts
        ),
    )


def of_report(document: dict[str, Any], reason: str) -> Acceptance:
    """What accepts every row of a report that is worse and not accepted yet, as far as it may be believed.

    Raises `click.ClickException` with one line if there is none, or no commit to bind it to.
    """
    commit = document["head"]["commit"]
    if commit == WORKING_TREE:
        raise click.ClickException("the report is of a working tree; allowed: one of a commit, to bind the reason to")
    judgement = Judgement(
        tuple(Verdict(**one) for one in document["judgement"]["verdicts"]), document["judgement"]["contaminated"]
    )
    rows = tuple(Row(one.key, one.quantity, one.word, one.high) for one in judgement.believed if one.is_bad)
    if not rows:
        raise click.ClickException("no row of the report is worse, or may be believed to be: nothing to accept")
    return Acceptance(commit, reason, rows)


def write(acceptances: Sequence[Acceptance]) -> None:
    """Replace the file."""
    write_aside(ROOT / FILE, json.dumps([dataclasses.asdict(one) for one in acceptances], indent=1) + "\n")
