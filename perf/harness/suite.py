"""The interface of asv's classes to the harness: the selected cases of a class, and its `track_*` methods' values.

asv runs `setup_cache` once per class and commit, without the user's selection, and then every `track_*` case in a
process of its own. The grid is therefore measured in `setup_cache`, and the `track_*` methods only look up their case.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perf.harness.case import Case, case_key
from perf.harness.declaration import problem_of_class
from perf.harness.lock import measuring
from perf.harness.progress import Progress, say
from perf.harness.records import CaseResult
from perf.harness.status import NOT_APPLICABLE, describe
from perf.harness.supervisor import FULL, QUICK, Effort, measure, visits_of

# The environment plugin, in asv's own process, sets these variables for every process that asv starts.
OPTIONS_VARIABLE = "PERF_ASV_OPTIONS"
"""asv's options as JSON: bench, a list of patterns, and quick."""

RECORDS_VARIABLE = "PERF_RECORDS"
"""The folder of records, beside asv's folder of results."""

PROGRESS_VARIABLE = "PERF_PROGRESS"
"""A file that writes to asv's terminal."""

HUNG_AFTER = 0.3
"""Fraction of asv's `timeout` (seconds without output) after which a visit counts as hung, before asv's own limit."""

Results = dict[str, CaseResult]
"""By case key; asv pickles it between `setup_cache` and `track_*`."""


def measure_class(benchmark: Any) -> Results:
    """Measure the selected cases of one asv class; to be called from a `setup_cache` of that class's own."""
    if problem := problem_of_class(type(benchmark)):
        raise SystemExit(f"{benchmark_name(benchmark)}: {problem}")
    patterns, effort = selection(os.environ.get(OPTIONS_VARIABLE, "{}"))
    effort = dataclasses.replace(effort, limit_s=HUNG_AFTER * benchmark.timeout)
    cases = [case for case in cases_of(benchmark) if is_selected(case, benchmark, patterns)]
    commit, checkout, records = _asv_environment()
    label = type(benchmark).__name__
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(measuring(f"asv run: {label}", wait=lambda busy: print(busy, flush=True)))
            progress = stack.enter_context(Progress(visits_of(cases, effort), label, os.environ.get(PROGRESS_VARIABLE)))
            results = measure(
                cases, commit=commit, checkout=checkout, records=records, effort=effort, progress=progress
            )
    except SystemExit as reason:  # which asv shows with --show-stderr alone
        say(str(reason), os.environ.get(PROGRESS_VARIABLE))
        raise
    return {result.key: result for result in results}


def reported_time(benchmark: Any, results: Results, *params: Any) -> dict[str, Any]:
    """Return the samples in seconds, in asv's format for its statistics."""
    return {"samples": list(_result(benchmark, results, params).samples_s), "number": 1}


def reported_peak_memory(benchmark: Any, results: Results, *params: Any) -> int | None:
    """Return the peak of the requested bytes."""
    return _result(benchmark, results, params).peak_bytes


def reported_fact(benchmark: Any, results: Results, name: str, *params: Any) -> float:
    """Return one of the workload's facts by its name."""
    return _result(benchmark, results, params).facts[name]


def cases_of(benchmark: Any) -> list[Case]:
    """Return a case for every combination of a class's parameters."""
    name = benchmark_name(benchmark)
    grid = (dict(zip(benchmark.param_names, values, strict=True)) for values in itertools.product(*benchmark.params))
    return [
        Case(
            benchmark=name,
            workload=benchmark.workload,
            params=params,
            device=benchmark.device,
            clock=params.get("clock") or benchmark.clock,
            cache=params.get("cache") or benchmark.cache,
            timed=hasattr(benchmark, "track_time"),
        )
        for params in grid
    ]


def benchmark_name(benchmark: Any) -> str:
    """Return asv's name of the class: `module.Class`, without the benchmark directory's name."""
    return f"{type(benchmark).__module__.rpartition('.')[2]}.{type(benchmark).__name__}"


def selection(options: str) -> tuple[list[str], Effort]:
    """Return the patterns and the effort that asv's options, as JSON, ask for; by default all cases in full."""
    given = json.loads(options)
    return given.get("bench") or [], QUICK if given.get("quick") else FULL


def methods_of(cls: type) -> list[str]:
    """Return the names of a class's series, its `track_*` methods."""
    return [name for name in dir(cls) if name.startswith("track_")]


def names_of(key: str, methods: Iterable[str]) -> list[str]:
    """Return the names by which a pattern selects a case: its key, and asv's `module.Class.method(params)` of each."""
    benchmark, parenthesis, params = key.partition("(")
    return [key, *(f"{benchmark}.{method}{parenthesis}{params}" for method in methods)]


def is_selected(case: Case, benchmark: Any, patterns: list[str]) -> bool:
    """Return whether some pattern, if there are any, matches in a name of the case; asv knows those with a method."""
    names = names_of(case.key, methods_of(type(benchmark)))
    return not patterns or any(re.search(pattern, name) for pattern in patterns for name in names)


def _result(benchmark: Any, results: Results, params: tuple[Any, ...]) -> CaseResult:
    from asv_runner.benchmarks.mark import SkipNotImplemented

    if not isinstance(results, dict):
        raise SystemExit(
            f"{type(benchmark).__name__}.setup_cache returns no results; allowed: return measure_class(self)"
        )
    result = results[case_key(benchmark_name(benchmark), params)]
    if result.status == "ok":
        return result
    reason = describe(vars(result))
    if result.status in NOT_APPLICABLE:
        raise SkipNotImplemented(reason)
    raise SystemExit(reason)


def _asv_environment() -> tuple[str, Path, Path]:
    """Return commit, checkout and records folder from the environment variables that asv sets."""
    if os.environ.get("ASV_ENV_TYPE") != "linked":
        raise SystemExit(
            f"perf: environment type {os.environ.get('ASV_ENV_TYPE')!r} was given; allowed: 'linked' (the one in "
            "asv.conf.json), because no other tells which commit's code is measured"
        )
    checkout = Path(os.environ["ASV_ENV_DIR"]) / "project"
    return os.environ["ASV_COMMIT"], checkout, Path(os.environ[RECORDS_VARIABLE])
