"""`python -m perf merge`: merge shards of a run, measured in several checkouts or on several machines.

asv's result file has a value for each cell of a grid: a number, null for a failure, or NaN for n/a and for a cell that
was not selected. Of two files of a commit and environment, each cell keeps the value that comes first in that order,
and of two numbers that of the row that was last run.
"""

import contextlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import click

from perf import stored
from perf.files import write_aside
from perf.harness import records
from perf.harness.journal import Journal, read_lines
from perf.harness.lock import lock_checkout
from perf.harness.working_tree import ROOT

STARTED_AT = 3
"""Place of a row's start among asv's columns."""


def merge(source: Path, target: Path) -> int:
    """Merge the `results` and `records` folders of `source` into those of `target`; return the number of files.

    Raises `click.ClickException` with one line if they cannot share a series: another GPU under the same machine name,
    another version or grid of a benchmark.
    """
    files = sorted((source / "results").glob("*/*.json"))
    if not files:
        raise click.ClickException(f"{source} was given; allowed: a folder with results/<machine>/*.json in it")
    # Reads, checks and merges all files before it writes any.
    read = {path: stored.read(path) for path in [*files, source / "results" / "benchmarks.json"]}
    lines = {
        (machine, commit): _sound_lines(source / "records", machine, commit)
        for machine in records.machines(source / "records")
        for commit in records.commits(source / "records", machine)
    }
    to_write: list[tuple[Path, dict[str, Any], dict[str, Any]]] = []
    for path, theirs in read.items():
        into = target / "results" / path.relative_to(source / "results")
        if not into.exists():
            to_write.append((into, theirs, {}))
        elif path.name == "machine.json":
            _require_same(theirs, stored.read(into), "gpu", path)
        elif path.name != "benchmarks.json":
            to_write.append((into, _merged(stored.read(into), theirs, path), {}))
        elif (entries := _entries(ours := stored.read(into), theirs, source, target)) != ours:
            to_write.append((into, entries, {"indent": 4, "sort_keys": True}))  # asv's own format
    for into, document, form in to_write:
        write_aside(into, json.dumps(document, **form))
    for (machine, commit), of_commit in lines.items():
        _merge_records(of_commit, target / "records", machine, commit)
    return len(files)


def _entries(ours: dict[str, Any], theirs: dict[str, Any], source: Path, target: Path) -> dict[str, Any]:
    """Merge two benchmarks.json, the only source of the axes by which a site shows rows: each entry as last run."""
    entries = theirs | ours
    if changed := [name for name, entry in theirs.items() if entry != entries[name]]:
        run_there, run_here = (_last_runs(folder / "results") for folder in (source, target))
        entries |= {name: theirs[name] for name in changed if run_there.get(name, 0) > run_here.get(name, 0)}
    return entries


def _last_runs(results: Path) -> dict[str, int]:
    """Map each benchmark to the start of its last run, ms since the epoch. A site leaves out files that are invalid."""
    last: dict[str, int] = {}
    for path in results.glob("*/*-*.json"):
        with contextlib.suppress(click.ClickException):
            for name, row in stored.read(path)["results"].items():
                last[name] = max(last.get(name, 0), _start(row))
    return last


def _start(row: list[Any]) -> int:
    started = row[STARTED_AT] if len(row) > STARTED_AT else None
    return started if isinstance(started, int) else 0


def _merged(ours: dict[str, Any], theirs: dict[str, Any], path: Path) -> dict[str, Any]:
    for name in ("commit_hash", "env_name", "params"):
        _require_same(theirs, ours, name, path)
    rows = dict(ours["results"])
    for benchmark, row in theirs["results"].items():
        rows[benchmark] = _merged_row(rows[benchmark], row, f"{path}: {benchmark}") if benchmark in rows else row
    durations = ours.get("durations", {})  # first, so that a second merge leaves the file as it is
    return ours | {"results": rows, "durations": durations | theirs.get("durations", {}) | durations}


def _merged_row(ours: list[Any], theirs: list[Any], where: str) -> list[Any]:
    """Merge a row cell by cell; asv's values for the whole row (start, duration, profile) are those of its last run."""
    if ours[1:3] != theirs[1:3]:
        raise click.ClickException(f"{where} has another grid or version than here: they are not one series")
    count = math.prod(map(len, ours[1]))
    width = max(len(ours), len(theirs))
    rows = [row + [None] * (width - len(row)) for row in (_columns(ours, count), _columns(theirs, count))]
    last, other = sorted(rows, key=_start, reverse=True)  # stable, so that a second merge leaves the file as it is
    takes = [_rank(b) > _rank(a) for a, b in zip(last[0], other[0], strict=True)]
    merged = []
    for index, (a, b) in enumerate(zip(last, other, strict=True)):
        per_cell = index == 0 or 4 < index < stored.PROFILE_COLUMN
        if not per_cell or (a is None and b is None):
            merged.append(a)
            continue
        a, b = (column if column is not None else [None] * count for column in (a, b))
        merged.append([y if take else x for x, y, take in zip(a, b, takes, strict=True)])
    return merged


def _columns(row: list[Any], count: int) -> list[Any]:
    """Expand a column of results that asv wrote as null, because the whole grid failed."""
    return [row[0] if row[0] is not None else [None] * count, *row[1:]]


def _rank(value: Any) -> int:
    if value is None:
        return 1
    return 0 if isinstance(value, float) and math.isnan(value) else 2


def _merge_records(lines: list[dict[str, Any]], target: Path, machine: str, commit: str) -> None:
    """Append the lines that the target lacks: all, or the rest of a session of which it has the beginning."""
    known = Counter(map(_text, read_lines(target, machine, commit)))
    new = []
    for line in lines:
        if known[_text(line)] > 0:
            known[_text(line)] -= 1
        else:
            new.append(line)
    if new:
        journal = Journal(target, machine, commit)
        for line in new:
            journal.write(line)
        journal.close()


def _sound_lines(source: Path, machine: str, commit: str) -> list[dict[str, Any]]:
    """Return a commit's lines. Raises `click.ClickException` with one line if there is none or one is faulty."""
    found = records.read(source, machine, commit)
    if trouble := found.trouble or ("" if found.lines else "has no line"):
        raise click.ClickException(f"{source / machine / commit}.jsonl.gz {trouble}")
    return found.lines


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, sort_keys=True)


def _require_same(theirs: dict[str, Any], ours: dict[str, Any], name: str, path: Path) -> None:
    if theirs.get(name) != ours.get(name):
        raise click.ClickException(
            f"{path} has {name} {theirs.get(name)!r}, here it is {ours.get(name)!r}: they are not one series"
        )


def commits(source: Path) -> set[str]:
    """Return the full hashes of the commits with results or records. Raises `click.ClickException` with one line."""
    measured = set()
    for path in sorted((source / "results").glob("*/*-*.json")):
        measured.add(stored.read(path)["commit_hash"])
    for machine in records.machines(source / "records"):
        measured |= set(records.commits(source / "records", machine))
    return measured


@click.command("merge")
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(sources: tuple[Path, ...]) -> None:
    """Merge the results and records of other checkouts' perf folders into this checkout's.

    \b
    python -m perf merge /scratch/shard-2/perf /scratch/shard-3/perf

    Each cell keeps a number before a failure, a failure before n/a, and of two numbers that of the row that was last
    run. Refuses another GPU under the same machine name, another version of a benchmark, invalid results, and commits
    that this repository lacks. Takes a second per commit.
    """
    from asv.config import Config

    from perf.gate.checkouts import resolve

    for source in sources:
        if source.resolve() == ROOT / "perf":
            raise click.ClickException(f"{source} was given, which is this checkout's; allowed: another's perf folder")
    for commit in sorted(set().union(*map(commits, sources))):
        resolve(commit)
    with lock_checkout(ROOT / Config.load(ROOT / "asv.conf.json").env_dir):  # a run would write its own results last
        for source in sources:
            count = merge(source, ROOT / "perf")
            click.echo(f"{source}: {count} files merged")
