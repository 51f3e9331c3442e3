"""`python -m perf missed`: the commits that a runner still has to measure; a run that never came is so made up for.

A commit is due if it touches cs336_systems and lacks a row of the set: nobody measured it, its run broke off, or a
benchmark is newer than its results (asv drops rows of another version). A row that holds a failure is a row: what
failed once is not run again each night.

`--gate` asks the same of the gate: what has changed since the newest commit that one has judged.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import click

from perf.gate.acceptance import FILE as ACCEPTED
from perf.gate.report import RECORDS
from perf.harness import device
from perf.harness.case import case_key
from perf.harness.suite import cases_of
from perf.harness.working_tree import ROOT
from perf.options import nearby
from perf.selection import SETS, asv_classes
from perf.workloads import PACKAGE


@click.command("missed")
@click.argument("name", type=click.Choice(sorted(SETS)), required=False)
@click.option("--machine", help="asv's name of the machine; default: the only one in its machine file.")
@click.option("--limit", type=click.IntRange(1), help="At most so many, the newest.")
@click.option("--last", type=click.IntRange(1), help="Look at the last so many commits that touch cs336_systems only.")
@click.option("--gate", is_flag=True, help="Instead: BASE and HEAD of the gate that is due, or nothing.")
def command(name: str | None, machine: str | None, limit: int | None, last: int | None, gate: bool) -> None:
    """Print the commits that lack results of the set NAME, newest first, one a line.

    \b
    python -m perf missed history --limit 25 > missed.txt
    asv run -b "$(python -m perf select history)" HASHFILE:missed.txt

    With --gate, print on one line what `python -m perf gate BASE HEAD --keep` has to compare: HEAD is the newest commit
    that touches cs336_systems or accepts what that did, BASE the newest that a kept gate of this machine has judged;
    without one, the code before. Prints nothing if no code is newer than BASE.
    """
    if gate == bool(name):
        raise click.UsageError("allowed: NAME, or --gate")
    known = {path.name for folder in (ROOT / "perf" / "results", RECORDS) for path in folder.glob("*") if path.is_dir()}
    if machine and machine not in known and (meant := nearby(machine, known)):
        raise click.UsageError(f"--machine {machine} was given, of which nothing is on file; {meant}")
    if gate:
        if due := _gate_due(machine or device.machine()["machine"]):
            click.echo(" ".join(due))
        return
    results = ROOT / "perf" / "results" / (machine or _only_machine())
    wanted = rows_of(SETS[name or ""])
    lacking = [commit for commit in _commits(last, PACKAGE) if not wanted.items() <= _versions(results, commit).items()]
    for commit in lacking[:limit]:
        click.echo(commit)


def rows_of(pattern: str) -> dict[str, str]:
    """The rows that `asv run -b pattern` writes: `module.Class.method` -> version."""
    rows = {}
    for name, cls, problem in asv_classes():
        if cls is None:
            raise click.ClickException(problem)
        methods = [f"{name}.{method}" for method in dir(cls) if method.startswith("track_")]
        for case in cases_of(cls()):
            for method in methods:
                if re.search(pattern, case_key(method, case.params.values())):
                    rows[method] = str(cls.version)
    return rows


def _versions(results: Path, commit: str) -> dict[str, str]:
    """The rows that the results of a commit hold, of all environments together."""
    rows: dict[str, str] = {}
    for path in results.glob(f"{commit[:8]}-*.json"):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["commit_hash"] == commit:
                rows |= {name: str(row[2]) for name, row in document["results"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise click.ClickException(f"{path} is cut in half: move it aside ({error})") from None
    return rows


def _gate_due(machine: str) -> tuple[str, ...]:
    """BASE and HEAD, or nothing."""
    line = {commit: age for age, commit in enumerate(_commits(None))}
    judged = [head for head in _judged(RECORDS / machine / "gate") if head in line]
    code = _commits(2, PACKAGE)
    if not code:
        return ()
    base = min(judged or code[-1:], key=line.__getitem__)
    return (base, *_commits(1, PACKAGE, ACCEPTED)) if line[code[0]] < line[base] else ()


def _judged(folder: Path) -> list[str]:
    """The heads of the kept gates of two commits, but for those that could say nothing of times: those are due."""
    heads = []
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            judged = document["exit_status"] != 2 and document["tests_passed"]
            two = document["base"]["commit"] != document["head"]["commit"]
            if judged and two and not document["judgement"]["contaminated"]:
                heads.append(str(document["head"]["commit"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise click.ClickException(f"{path} is cut in half, or no report of a gate: move it aside") from None
    return heads


def _commits(last: int | None, *paths: str) -> list[str]:
    """The first parents of HEAD that touch these paths, newest first."""
    count = [f"-{last}"] if last else []
    command = ["git", "log", "--first-parent", "--format=%H", *count, "--", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"{ROOT} is not a git repository with commits: {done.stderr.strip()}")
    return done.stdout.split()


def _only_machine() -> str:
    from perf.asv_plugins.linked_environment import MachineCollection

    path = Path(MachineCollection.get_machine_file_path())
    try:
        known: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        raise click.ClickException(f"{path} cannot be read; `python -m perf machine` writes it") from None
    names = sorted(set(known) - {"version"})
    if len(names) != 1:
        raise click.ClickException(f"{path} names {len(names)} machines; allowed: one, or --machine NAME")
    return names[0]
