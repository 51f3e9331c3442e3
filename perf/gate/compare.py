"""A gate from end to end: HEAD's tests, both arms measured, every row judged, one report."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence

import click

from perf.files import scratch_folder
from perf.gate import acceptance, checkouts
from perf.gate.correctness import Tests, run_tests
from perf.gate.evidence import Arm, Evidence
from perf.gate.measuring import VISITS, Measuring
from perf.gate.rows import draw
from perf.gate.verdicts import Judgement, Report
from perf.harness.injection import Injection
from perf.harness.preflight import asked_apart, objection
from perf.harness.progress import TerminalBar
from perf.printable import printable_lines

IsOpen = Callable[[Sequence[Evidence]], Sequence[Evidence]]


def compare(arms: tuple[Arm, Arm], evidence: list[Evidence], *, budget_s: float, tests: bool, command: str) -> Report:
    """Test, measure, judge; `command` is what repeats it."""
    from perf.gate.judge import judge, visits

    begin = time.monotonic()
    accepted = acceptance.between(*arms)
    if any(one.case.device == "cuda" for one in evidence):
        click.echo("Are the GPUs free and sound?", err=True)
        if reason := objection(asked_apart()):
            raise click.ClickException(reason)  # before tests of minutes; every measuring process asks again
    click.echo(f"{len(evidence)} rows, controls included, at most {budget_s / 60:g} minutes", err=True)
    ended = _tested(arms[1]) if tests else Tests(True, "not run: --no-tests", "")
    if not ended.passed:
        return _report(arms, Judgement((), ""), (), ended, command, begin)
    draw(evidence, f"{arms[0].commit} {arms[1].commit}")
    run = measure(arms, evidence, budget_s=budget_s)
    judgement = acceptance.applied(judge(evidence), accepted)
    report = _report(arms, judgement, _without(evidence), ended, command, begin, run, _differences(evidence))
    return dataclasses.replace(report, visits=visits(evidence))


def measure(
    arms: tuple[Arm, Arm],
    evidence: list[Evidence],
    *,
    budget_s: float,
    injection: Injection | None = None,
    is_open: IsOpen | None = None,
) -> Measuring:
    """Fill the evidence: both arms side by side, until nothing is open (`judge.open_rows`) or the budget has ended."""
    from perf.gate.judge import open_rows
    from perf.gate.statistics import LOOKS

    for one in evidence:
        one.planted = injection is not None and not one.is_control
    with scratch_folder("perf-gate-") as folder:
        places = folder / "base", folder / "head"
        for arm, place in zip(arms, places, strict=True):
            checkouts.export(arm, place)
        with TerminalBar(VISITS * LOOKS[0] * len(evidence)) as bar:
            run = Measuring(
                evidence,
                places,
                budget_s=budget_s,
                looks=LOOKS,
                is_open=is_open or open_rows,
                step=bar.step,
                pythons=(arms[0].python, arms[1].python) if arms[0].python and arms[1].python else None,
                injection=dataclasses.asdict(injection) if injection else None,
            )
            run.until_settled()
    return run


def _tested(head: Arm) -> Tests:
    click.echo("HEAD's tests first; --no-tests leaves them out.", err=True)
    ended = run_tests(head)
    if not ended.passed:
        click.echo(printable_lines(ended.output), err=True)
    return ended


def _without(evidence: Sequence[Evidence]) -> tuple[tuple[str, int], ...]:
    reasons: Counter[str] = Counter()
    for one in evidence:
        if not one.outcomes:
            reasons["the budget ended before the first visit"] += 1
        elif all(outcome.status != "ok" for outcome in one.outcomes.values()):
            reasons[one.outcomes["head"].reason] += 1
    return tuple(reasons.most_common())


def _differences(evidence: Sequence[Evidence]) -> tuple[tuple[str, str], ...]:
    """Key and words of every case whose arms computed something else."""
    return tuple(
        (
            one.case.key,
            ", ".join(
                f"{name} by {found:.1e}, rounding allows {allowed:.1e}" for name, found, allowed in one.differences
            ),
        )
        for one in evidence
        if one.differences
    )


def _report(
    arms: Sequence[Arm],
    judgement: Judgement,
    without: tuple[tuple[str, int], ...],
    tests: Tests,
    command: str,
    begin: float,
    run: Measuring | None = None,
    differences: tuple[tuple[str, str], ...] = (),
) -> Report:
    seconds = time.monotonic() - begin
    base, head = ({"commit": arm.commit, "subject": arm.subject} for arm in arms)
    return Report(
        base=base,
        head=head,
        judgement=judgement,
        without=without,
        device=run.greeting.get("device", {}) if run else {},
        software=run.greeting.get("software", {}) if run else {},
        head_software=run.greeting.get("head_software", {}) if run else {},
        command=command,
        seconds=round(seconds, 1),
        spent_s={what: round(s, 1) for what, s in run.spent_s.most_common()} if run else {},
        processes=run.processes if run else 0,
        tests_passed=tests.passed,
        tests=tests.summary,
        differences=differences,
    )
