"""Add to asv's results what only the records have, so that all pages show the same newest values.

A killed run leaves cases in the records that asv has not stored. Pages made from asv's graphs would then contradict
those made from records, and call a row worse that the newer records refute.
"""

import itertools
import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perf.harness.records import CaseResult
from perf.site import asv_graphs, newest
from perf.site.estimate import MIN_VISITS


def complete(results: Any, benchmarks: Mapping[str, Any], directory: Path, harness: str) -> int:
    """Add a commit's recorded values to `asv.results.Results` where it has none; return their number.

    `benchmarks`: entries of benchmarks.json by name. Only records of this version of `harness` count, since a record
    does not tell the version of its benchmark, and only cases with enough visits for an interval.
    """
    cases = newest.read_commit(directory, results.params["machine"], results.commit_hash)
    whole = {
        (one.benchmark, *map(repr, one.params.values())): one
        for one in cases
        if one.status == "ok"
        and one.session.harness == harness
        and (not one.visits_s or len(one.visits_s) >= MIN_VISITS)
        and is_of(one, results)
    }
    known = results.get_all_result_keys()
    added = 0
    for method, benchmark in benchmarks.items() if whole else ():
        name, _, track = method.rpartition(".")
        cells = list(itertools.product(*benchmark["params"]))
        if method in known:
            if results.benchmark_version[method] != benchmark["version"]:
                continue
            stored = results.get_result_value(method, benchmark["params"])
        else:
            stored = [None] * len(cells)
        taken = {
            index: value
            for index, (cell, value_of_asv) in enumerate(zip(cells, stored, strict=True))
            if (case := whole.get((name, *cell))) and not asv_graphs.is_number(value_of_asv)
            if (value := _value(case, track)) is not None
        }
        if taken:
            _add(results, benchmark, stored, taken, max(one.session.started_at for one in whole.values()))
            added += len(taken)
    return added


def is_of(case: CaseResult, results: Any) -> bool:
    """Whether a case was measured with the versions of torch and Triton of asv's results."""
    wanted = {name: results.params[name] for name in ("torch", "triton") if results.params.get(name)}
    software = case.session.software
    return all(_release(software.get(name, "")) == _release(version) for name, version in wanted.items())


def _release(version: str) -> str:
    """Return a version without its build: what is installed may name one where the module does not."""
    return version.partition("+")[0]


def _value(case: CaseResult, track: str) -> list[float] | float | None:
    """Return the samples, or the number, that asv would have stored of a method."""
    if track == "track_time":
        return list(case.samples_s) or None
    return case.peak_bytes if track == "track_peak_memory" else case.facts.get(track.removeprefix("track_"))


def _add(
    results: Any, benchmark: Any, stored: list[Any], taken: Mapping[int, list[float] | float], started_at: str
) -> None:
    sampled = {index: value for index, value in taken.items() if isinstance(value, list)}
    values = [taken.get(index, math.nan if value is None else value) for index, value in enumerate(stored)]
    found = SimpleNamespace(
        result=values,  # asv takes samples first
        samples=[sampled.get(index) for index in range(len(stored))],
        number=[1 if index in sampled else None for index in range(len(stored))],
        stderr="",
        errcode=0,
        profile=None,
    )
    when = datetime.fromisoformat(started_at)
    results.add_result(benchmark, found, started_at=when, selected_idx=set(taken))
