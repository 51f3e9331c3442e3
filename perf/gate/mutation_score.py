"""Score the gate on planted regressions: which of `mutations` does it find?"""

import datetime
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from perf.files import write_measured
from perf.gate import checkouts
from perf.gate.compare import measure
from perf.gate.evidence import Arm, Evidence
from perf.gate.judge import judge, open_rows
from perf.gate.mutations import LIST, VERSION, Mutation, scores_by_kind
from perf.gate.report import own_test, place
from perf.gate.rows import rows
from perf.gate.unreached import Change, in_reach
from perf.gate.verdicts import Judgement, Verdict
from perf.harness.reach import ReachMap
from perf.tables import text_table


@dataclass(frozen=True)
class Attempt:
    """A mutation and what the gate said of its row."""

    mutation: Mutation
    word: str
    """The verdict; "" if there is none: neither arm runs here, the controls moved, or it cannot be planted."""

    change: float | None
    reason: str
    seconds: float

    @property
    def is_found(self) -> bool:
        """Whether the verdict is the wanted one."""
        return self.word == self.mutation.wanted

    def to_json(self) -> dict[str, Any]:
        """Return the form on record."""
        named = {name: getattr(self.mutation, name) for name in ("kind", "name", "file", "wanted")}
        return named | {name: value for name, value in asdict(self).items() if name != "mutation"}


def selected_rows(pattern: str) -> list[Evidence]:
    """Return empty evidence for a mutation's row, with controls. Raises `click.ClickException` if there is none."""
    found = rows(pattern)
    if not any(not row.is_control for row in found):
        raise click.ClickException(f"no case matches {pattern!r}, the row of a mutation in {LIST.name}")
    return found


def score(arm: Arm, chosen: Sequence[Mutation], *, budget_s: float) -> bool:
    """Gate `arm` against itself with each mutation in turn, print what was found, and keep it.

    The record is rewritten after each mutation. Returns whether any row was judged; if not, nothing is kept.
    """
    started, attempts, device = datetime.datetime.now(datetime.UTC), list[Attempt](), dict[str, Any]()
    path: Path | None = None
    for number, mutation in enumerate(chosen, 1):
        click.echo(f"{number} of {len(chosen)}: {mutation.kind}: {mutation.name}", err=True)
        try:
            attempt, greeting = _attempt(arm, mutation, selected_rows(mutation.row), budget_s)
        except click.ClickException as error:  # a commit may lack the text or the row
            attempt, greeting = Attempt(mutation, "", None, error.message, 0.0), {}
        attempts.append(attempt)
        device = device or greeting
        if any(one.word for one in attempts):
            record = own_test(VERSION, arm, device, started, attempts=[one.to_json() for one in attempts])
            path = path or place("mutations", started)
            write_measured({path: record})
    click.echo(table(attempts))
    if path:
        click.echo(f"\nKept in {path}")
    return path is not None


def is_spared(change: Change, evidence: Sequence[Evidence], known: ReachMap | None = None) -> bool:
    """Return whether a gate would leave a mutation's rows out, by this machine's map or `known`: then it escapes."""
    _, out_of_reach = in_reach(evidence, change, known)
    spared = {*out_of_reach.skipped, *out_of_reach.sampled}
    return all(row.is_control or row.case.key in spared for row in evidence)


def _attempt(arm: Arm, mutation: Mutation, evidence: list[Evidence], budget_s: float) -> tuple[Attempt, dict[str, Any]]:
    def still_open(rows: Sequence[Evidence]) -> Sequence[Evidence]:
        verdict = verdict_of(mutation, judge(evidence))
        return [] if verdict and verdict.word == mutation.wanted else open_rows(rows)

    begin = time.monotonic()
    with checkouts.exported(arm, arm) as places:
        mutation.plant(places[1])
        if is_spared(Change.between(arm, arm, places), evidence):
            return Attempt(mutation, "SAME", None, "not measured: the map says that its row cannot be reached", 0.0), {}
        run = measure((arm, arm), places, evidence, budget_s=budget_s, is_open=still_open)
    judgement = judge(evidence)
    verdict = verdict_of(mutation, judgement)
    reason = verdict.reason if verdict else "neither arm ran here"
    word, change = (verdict.word, verdict.change) if verdict else ("", None)
    if verdict and verdict.word != "AMBIGUOUS" and verdict not in judgement.believed:
        word, reason = "", judgement.contaminated
    return Attempt(mutation, word, change, reason, round(time.monotonic() - begin, 1)), run.greeting


def verdict_of(mutation: Mutation, judgement: Judgement) -> Verdict | None:
    """Return the wanted verdict if a row got it, otherwise that of the first row; None if no row ran."""
    quantity = "peak_memory" if mutation.wanted == "LARGER" else "time"
    verdicts = [one for one in judgement.verdicts if one.quantity == quantity or one.word == "BROKEN"]
    return next((one for one in verdicts if one.word == mutation.wanted), verdicts[0] if verdicts else None)


def table(attempts: Sequence[Attempt]) -> str:
    """Format a row per mutation and the score by kind."""
    lines = [
        {
            "kind": attempt.mutation.kind,
            "planted": attempt.mutation.name,
            "verdict": attempt.word or "-",
            "change": "-" if attempt.change is None else f"{100 * attempt.change:+.1f} %",
            "": "found" if attempt.is_found else attempt.reason or f"not {attempt.mutation.wanted}",
            "took": f"{attempt.seconds:.0f} s",
        }
        for attempt in attempts
    ]
    scores = [
        {"kind": kind, "found": rate.hits, "of": rate.of, "rate": rate.words(at_most=False)}
        for kind, rate in scores_by_kind([(one.mutation.kind, one.word, one.is_found) for one in attempts])
    ]
    return f"{text_table(lines)}\n\n{text_table(scores)}"
