"""Data files of the Compare page: every case of one commit on one machine."""

import itertools
import json
import math
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any

from perf.harness import records
from perf.harness.records import CaseResult, Session
from perf.harness.status import abbreviation
from perf.selection import runs_project_code
from perf.site import asv_graphs, conditions, offline, recorded
from perf.site.changes.rows import ALLOCATED
from perf.site.estimate import estimate
from perf.site.newest import Site, sitting

MOST = 200
"""Commits of a machine to choose from, the newest: each costs a file, and its records are read anew."""

FOLDER = "compare"
"""Beside the page: `compare/<machine>/<hash>.json`."""


def commits_of(site: Site, machine: str) -> list[str]:
    """Return hashes of a machine's published commits with records, newest first."""
    if machine not in records.machines(site.directory):  # known by its results alone, so its name is no folder's
        return []
    found = (one for one in records.commits(site.directory, machine) if one in site.published)
    return sorted(found, key=site.revisions.__getitem__, reverse=True)


def write(site: Site, machine: str, html_dir: Path) -> dict[str, frozenset[str]]:
    """Write a file for each of the newest `MOST` commits; return what `timed` names in each, by hash, newest first."""
    commits = commits_of(site, machine)[:MOST]
    measured = _classes_by_commit(site, machine, commits)
    known, series = frozenset(site.benchmarks), site.series(machine)
    folder = html_dir / FOLDER / machine
    written = {}
    for commit in commits:
        found = read(site.directory, machine, commit, known, measured[commit], series)
        if found is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        offline.replace_text(folder / f"{commit}.json", json.dumps(found, separators=(",", ":"), allow_nan=False))
        written[commit] = timed(found)
    return written


def timed(found: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the timed cases of project code in a commit's file."""
    return frozenset(
        f"{name}({', '.join(values)})"
        for name, one in found["classes"].items()
        for values, seconds, *_, ours in one["cases"]
        if seconds is not None and ours
    )


def pair(written: Mapping[str, frozenset[str]]) -> tuple[int, int]:
    """Return the places of the newest base and head that share half of the cases of either; else (1, 0)."""
    cases = list(written.values())
    for head, base in itertools.combinations(range(len(cases)), 2):
        if 2 * len(cases[head] & cases[base]) >= max(1, min(len(cases[head]), len(cases[base]))):
            return base, head
    return 1, 0


def read(
    directory: Path, machine: str, commit: str, known: Collection[str], measured: Container[str], series: Container[str]
) -> dict[str, Any] | None:
    """Return the contents of a commit's file; None if none is readable, which the overview reports.

    sessions   of each: made (day, device, versions), sitting (day and device), harness, blocks (whether its bytes are
               an allocator's, and so not exact)
    classes    by `module.Class`: axes; graph (asv's benchmark of its times, "" if it has none); cases, each a list of
               values (as Python writes them), seconds (the median) or null, half the width of its 95 % interval as a
               fraction of it or null, peak bytes or null, number of the session, outcome in short ("" if measured),
               whether it runs project code

    `known`: asv's benchmarks; `series`: those with a graph of this machine; `measured`: classes of which asv has a
    value at the commit. A class that it knows and has no value of is of another version there, and compares with
    nothing.
    """
    classes = {name.rpartition(".")[0] for name in known} if measured else set()
    results = records.summarize(recorded.read(directory, machine, commit).lines)
    results = [one for one in results if one.benchmark not in classes or one.benchmark in measured]
    if not results:
        return None
    sessions = {one.session.id: one.session for one in results}
    numbers = {name: at for at, name in enumerate(sessions)}
    found: dict[str, dict[str, Any]] = {}
    for one in results:
        graph = f"{one.benchmark}.track_time"
        empty = {"axes": list(one.params), "graph": graph if graph in series else "", "cases": []}
        found.setdefault(one.benchmark, empty)["cases"].append(_case(one, numbers[one.session.id]))
    return {"sessions": [_session(one) for one in sessions.values()], "classes": found}


def _classes_by_commit(site: Site, machine: str, commits: Collection[str]) -> dict[str, set[str]]:
    """Return the classes with a value or failure in asv's results, by commit."""
    found: dict[str, set[str]] = {one: set() for one in commits}
    for graph in asv_graphs.of(site.graphs, machine):
        for commit in commits:
            if site.revisions[commit] in graph.data_points:
                found[commit].add(graph.benchmark_name.rpartition(".")[0])
    return found


def _case(one: CaseResult, session: int) -> list[Any]:
    time = estimate(one)
    seconds = half = None
    if time and math.isfinite(time.median):
        seconds = float(f"{time.median:.6g}")
        if seconds > 0:
            half = float(f"{time.relative:.4g}")
    return [
        [repr(value) for value in one.params.values()],
        seconds,
        half if half is not None and math.isfinite(half) else None,
        one.peak_bytes if one.status == "ok" else None,
        session,
        "" if one.status == "ok" else abbreviation(one.status),
        runs_project_code(one.benchmark, one.params),
    ]


def _session(one: Session) -> dict[str, Any]:
    effort = "" if one.effort == "full" else "a quick run"
    parts = (one.day, one.device.get("name", ""), conditions.software(one.software), f"harness {one.harness}", effort)
    return {
        "made": ", ".join(filter(None, parts)),
        "sitting": sitting(one.day, one.device),
        "harness": one.harness,
        "blocks": one.harness in ALLOCATED,
    }
