"""`python -m perf missed`: list the commits that a runner still has to measure, for example after a missed run.

A commit is due if it touches cs336_systems and lacks a case of the set: it was not measured, its run was interrupted, a
part was lost, or a benchmark is newer than its results (asv drops rows of another version). A failure counts as
measured, so that it is not repeated every night.

`--gate` does the same for the gate: it compares with the newest commit that a gate has judged.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import click

from perf import stored
from perf.commands.machine import known_machines
from perf.gate.acceptance import FILE as ACCEPTED
from perf.gate.report import Unreadable, read_report
from perf.git import output
from perf.harness import device, records
from perf.harness.case import Case, case_key
from perf.harness.suite import cases_of, methods_of
from perf.harness.working_tree import RECORDS, ROOT
from perf.machines import machine_file
from perf.options import nearby
from perf.selection import SETS, sound_classes
from perf.workloads import PACKAGE


@click.command("missed")
@click.argument("name", type=click.Choice(sorted(SETS)), required=False)
@click.option("--machine", help="asv's name of the machine; default: the only machine in its machine file.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of commits; the newest are printed.")
@click.option(
    "--last", type=click.IntRange(1, 10**6), help="Number of the last commits that touch cs336_systems to examine."
)
@click.option("--gate", is_flag=True, help="Print BASE and HEAD of the gate that is due instead, or nothing.")
def command(name: str | None, machine: str | None, limit: int | None, last: int | None, gate: bool) -> None:
    """Print the commits that lack results of the set NAME, newest first, each on a line.

    \b
    python -m perf missed history --limit 25 > missed.txt
    asv run -b "$(python -m perf select history)" HASHFILE:missed.txt

    With --gate, print the arguments of the `python -m perf gate BASE HEAD --keep` that is due on a line: HEAD is the
    newest commit that touches cs336_systems or accepts a regression, BASE the newest commit that a kept gate of this
    machine has judged, or the previous change of the code without such a gate. Prints nothing if no code is newer than
    BASE.
    """
    if gate == bool(name):
        raise click.UsageError("allowed: NAME, or --gate")
    if gate and (limit or last):
        raise click.UsageError("--gate was given with --limit or --last; allowed: with --machine")
    known = {path.name for folder in (ROOT / "perf" / "results", RECORDS) for path in folder.glob("*") if path.is_dir()}
    if machine and machine not in known and (hint := nearby(machine, known)):
        raise click.UsageError(f"--machine {machine} was given, which has nothing on file; {hint}")
    if gate:
        if due := _gate_due(machine or device.machine()["machine"]):
            click.echo(" ".join(due))
        return
    machine = machine or _only_machine()
    results, pattern = ROOT / "perf" / "results" / machine, SETS[name or ""]
    rows, cases = rows_of(pattern), {case.key: case for _, _, case in _selected(pattern)}
    lacking = (
        commit
        for commit in _commits(last, PACKAGE)
        if not rows.items() <= _versions(results, commit).items() or _lacks_case(cases, machine, commit)
    )
    for commit in itertools.islice(lacking, limit):
        click.echo(commit)


def rows_of(pattern: str) -> dict[str, str]:
    """Return the rows that `asv run -b pattern` writes: `module.Class.method` -> version."""
    return {row: version for row, version, _ in _selected(pattern)}


def _selected(pattern: str) -> Iterator[tuple[str, str, Case]]:
    """Yield row, version and case of each cell that `asv run -b pattern` measures."""
    for name, cls in sound_classes():
        for case in cases_of(cls()):
            for method in methods_of(cls):
                if re.search(pattern, case_key(f"{name}.{method}", case.params.values())):
                    yield f"{name}.{method}", str(cls.version), case


def _lacks_case(cases: Mapping[str, Case], machine: str, commit: str) -> bool:
    """Whether a commit's records lack a case of a class that was visited there; others cannot run on the machine."""
    on_file = records.read(RECORDS, machine, commit, ("session", "visit"), warn=partial(click.echo, err=True))
    visits = [line for line in on_file.lines if line["kind"] == "visit"]
    visited = set(map(records.key_of, visits))
    classes = {visit["benchmark"] for visit in visits}
    return any(case.benchmark in classes and key not in visited for key, case in cases.items())


def _versions(results: Path, commit: str) -> dict[str, str]:
    """Return the rows in a commit's results, of all environments together."""
    rows: dict[str, str] = {}
    for path in results.glob(f"{commit[:8]}-*.json"):
        document = stored.read(path)
        if document["commit_hash"] == commit:
            rows |= {name: str(row[2]) for name, row in document["results"].items() if len(row) > 2}
    return rows


def _gate_due(machine: str) -> tuple[str, ...]:
    """Return BASE and HEAD, or ()."""
    ages = {commit: age for age, commit in enumerate(_commits(None))}
    judged = [head for head in _judged(RECORDS / machine / "gate") if head in ages]
    code = _commits(2, PACKAGE)
    if not code:
        return ()
    base = min(judged or code[-1:], key=ages.__getitem__)
    return (base, *_commits(1, PACKAGE, ACCEPTED)) if ages[code[0]] < ages[base] else ()


def _judged(folder: Path) -> list[str]:
    """Return the heads of the kept gates of two commits that judged times."""
    heads = []
    for path in sorted(folder.glob("*.json")):
        try:
            report = read_report(path)
        except Unreadable as error:
            raise click.ClickException(f"{path} {error}: move it aside") from None
        judged = report.exit_status != 2 and report.tests_passed and not report.judgement.contaminated
        if judged and not report.is_of_identical_code:
            heads.append(str(report.head["commit"]))
    return heads


def _commits(last: int | None, *paths: str) -> list[str]:
    """List HEAD and its first parents that touch these paths, newest first."""
    count = [f"-{last}"] if last else []
    return output(ROOT, "log", "--first-parent", "--format=%H", *count, "--", *paths).split()


def _only_machine() -> str:
    try:
        names = known_machines()
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if len(names) != 1:
        raise click.ClickException(f"{machine_file()} names {len(names)} machines; allowed: 1, or --machine NAME")
    return names.pop()
