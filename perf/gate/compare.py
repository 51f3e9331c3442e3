"""Run a gate from end to end: HEAD's tests, both arms measured, every row judged, one report."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from perf import units
from perf.gate import acceptance
from perf.gate.correctness import NO_CODE, SKIPPED, run_tests
from perf.gate.evidence import Arm, Evidence
from perf.gate.measuring import VISITS, Measuring
from perf.gate.removed import removed_rows
from perf.gate.rows import draw
from perf.gate.unreached import change_between, in_reach
from perf.gate.verdicts import LOOKS, OUT_OF_TIME, RULES, Judgement, Report, Unreached
from perf.harness.injection import Injection
from perf.harness.preflight import asked_apart, objection
from perf.harness.progress import TerminalBar


def compare(
    arms: tuple[Arm, Arm],
    places: tuple[Path, Path],
    evidence: list[Evidence],
    *,
    budget_s: float,
    tests: bool,
    every_row: bool,
    command: str,
) -> Report:
    """Test, measure and judge arms that are in these folders; `command` is the command line that repeats it.

    Rows that the change cannot reach are left out unless `every_row`.
    """
    begin = time.monotonic()
    base, head = arms
    accepted = acceptance.between(base, head)
    unreached, tested = Unreached(), None if tests else SKIPPED
    if not every_row and (change := change_between(base, head, places)):
        evidence, unreached = in_reach(evidence, change)
        tested = tested or (None if change.is_of_code else NO_CODE)
    if any(row.case.device == "cuda" for row in evidence):
        click.echo("Are the GPUs free and sound?", err=True)
        if reason := objection(asked_apart()):
            raise click.ClickException(reason)  # before minutes of tests; every measuring process checks again
    click.echo(f"{units.counted(len(evidence), 'row')}, controls included, at most {budget_s / 60:g} minutes", err=True)
    tested = tested or run_tests(head)
    from perf.gate.judge import judge, open_rows, visits  # scipy takes a second to load, after any refusal

    run, judgement = None, Judgement((), "")
    if tested.passed and evidence:
        draw(evidence, f"{base.commit} {head.commit}")
        run = measure(arms, places, evidence, budget_s=budget_s, is_open=open_rows)
        judgement = acceptance.applied(judge(evidence), accepted)
    greeting = run.greeting if run else {}
    return Report(
        base={"commit": base.commit, "subject": base.subject},
        head={"commit": head.commit, "subject": head.subject},
        judgement=judgement,
        without=_missing_rows(evidence) if run else (),
        device=greeting.get("device", {}),
        software=greeting.get("software", {}),
        head_software=greeting.get("head_software", {}),
        command=command,
        seconds=round(time.monotonic() - begin, 1),
        spent_s={purpose: round(s, 1) for purpose, s in run.spent_s.most_common()} if run else {},
        processes=run.processes if run else 0,
        tests_passed=tested.passed,
        tests=tested.summary,
        differences=_differences(evidence),
        visits=visits(evidence),
        unreached=unreached,
        removed=removed_rows(arms, places),
        rules=RULES,
    )


def measure(
    arms: tuple[Arm, Arm],
    places: tuple[Path, Path],
    evidence: list[Evidence],
    *,
    budget_s: float,
    is_open: Callable[[Sequence[Evidence]], Sequence[Evidence]],
    injection: Injection | None = None,
) -> Measuring:
    """Fill the evidence with both arms alternating, until no row `is_open` or the budget has ended."""
    for row in evidence:
        row.planted = injection is not None and not row.is_control
    with TerminalBar(VISITS * LOOKS[0] * len(evidence)) as bar:
        run = Measuring(
            evidence,
            places,
            budget_s=budget_s,
            looks=LOOKS,
            is_open=is_open,
            step=bar.step,
            pythons=(arms[0].python, arms[1].python) if arms[0].python and arms[1].python else None,
            injection=dataclasses.asdict(injection) if injection else None,
        )
        run.until_settled()
    return run


def _missing_rows(evidence: Sequence[Evidence]) -> tuple[tuple[str, int], ...]:
    """Count the rows that were never visited, and those that neither arm can run, by reason."""
    reasons: Counter[str] = Counter()
    for row in evidence:
        if not row.outcomes:
            reasons[OUT_OF_TIME] += 1
        elif not any(outcome.works for outcome in row.outcomes.values()):
            reasons[row.outcomes["head"].reason] += 1
    return tuple(reasons.most_common())


def _differences(evidence: Sequence[Evidence]) -> tuple[tuple[str, str], ...]:
    """List the rows whose results differ between the arms by more than rounding, each with a clause."""
    return tuple(
        (
            row.case.key,
            ", ".join(
                f"{name} by {difference:.2e}, rounding allows {allowed:.2e}"
                for name, difference, allowed in row.differences
            ),
        )
        for row in evidence
        if row.differences
    )
