"""Split the time of a run by purpose, as every visit records it."""

from collections import Counter
from functools import partial
from typing import Any

import click

from perf.git import git
from perf.harness import records
from perf.harness.status import PHASES
from perf.harness.working_tree import RECORDS
from perf.tables import text_table

PURPOSES = {"timed": "timed intervals"} | PHASES
PURPOSES |= {"sample": "sampling around them", "rest": "everything else: failed visits, records, requests"}


@click.command()
@click.argument("commit", required=False)
def command(commit: str | None) -> None:
    """Split the time of a run by purpose, from the records of COMMIT, by default the newest. No GPU.

    Seconds by purpose: timed intervals, warm-up, allocation, first calls (which compile), checks, ...
    """
    is_empty = True
    for machine, full_hash in _measured(commit):
        lines = records.read(RECORDS, machine, full_hash, warn=partial(click.echo, err=True)).lines
        for session in (line for line in lines if line["kind"] == "session"):
            cases, seconds = spent([line for line in lines if line.get("session") == session["id"]])
            if not cases:
                continue
            is_empty = False
            total = sum(seconds.values())
            rows = [
                {
                    "for": words,
                    "s": f"{seconds[purpose]:.1f}",
                    "s a case": f"{seconds[purpose] / cases:.3f}",
                    "share": f"{seconds[purpose] / total:.1%}",
                }
                for purpose, words in PURPOSES.items()
            ]
            click.echo(f"{machine}, {full_hash[:8]}, {session['started_at'][:16]}: {cases} cases in {total:.0f} s")
            click.echo(text_table(rows, align=_ALIGN))
    if is_empty:
        raise click.ClickException(f"no records of {commit or 'any commit'} in {RECORDS} hold the time of their visits")


_ALIGN = ("left", "right", "right", "right")


def spent(lines: list[dict[str, Any]]) -> tuple[int, Counter[str]]:
    """Return the number of cases measured in one session, and its seconds by purpose.

    Measurements of a run that died count for the run that resumed it, if any.
    """
    seconds: Counter[str] = Counter(dict.fromkeys(PURPOSES, 0.0))
    run: Counter[str] = Counter()
    cases = 0
    for line in lines:
        if line["kind"] == "run":
            cases += line["cases"]
            seconds.update(run)
            seconds["rest"] += max(0.0, line["seconds"] - run.total())
            run.clear()
        elif line["kind"] == "process":
            run["start"] += line.get("started_in_s", 0.0)
        elif line["kind"] == "visit":
            timed = sum(line.get("samples_ns", ())) * 1e-9
            run["timed"] += timed
            run["sample"] -= timed
            for purpose, milliseconds in line.get("spent_ms", {}).items():
                run[purpose] += milliseconds * 1e-3
    return cases, seconds


def _measured(commit: str | None) -> list[tuple[str, str]]:
    """Return machine and full hash of every commit with this prefix; by default of each machine's newest session."""
    every = [(machine, full) for machine in records.machines(RECORDS) for full in records.commits(RECORDS, machine)]
    if commit is not None:
        named = [(machine, full) for machine, full in every if full.startswith(commit)]
        full_hash = git(RECORDS, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").stdout.decode().strip()
        return named or [(machine, full) for machine, full in every if full == full_hash]
    newest: dict[str, tuple[str, str]] = {}
    for machine, full in every:
        started = [line["started_at"] for line in records.read(RECORDS, machine, full, kinds=("session",)).lines]
        newest[machine] = max(newest.get(machine, ("", "")), (max(started, default=""), full))
    return [(machine, full) for machine, (_, full) in newest.items()]
