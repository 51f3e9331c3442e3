"""Between asv's classes and the harness: the selected cases of a class, and what its `track_*` methods report.

asv runs `setup_cache` once per class and commit, with no word of what the user selected, and then every `track_*` case
in a process of its own. So the grid is measured in `setup_cache` and the `track_*` methods only look their case up.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import re
import shlex
from pathlib import Path
from typing import Any

from perf.harness.case import Case, case_key
from perf.harness.lock import measuring
from perf.harness.progress import Progress
from perf.harness.status import Status, told
from perf.harness.supervisor import FULL, QUICK, Effort, measure, visits_of

# Set by the environment plugin, which lives in asv's own process, for every process that asv starts.
ARGUMENTS = "PERF_ASV_ARGUMENTS"
"""asv's command line, shell-quoted."""

RECORDS = "PERF_RECORDS"
"""The folder of records that belongs to asv's results folder: beside it."""

PROGRESS = "PERF_PROGRESS"
"""A file that reaches asv's terminal."""

NOT_APPLICABLE: tuple[Status, ...] = ("unavailable", "out_of_memory")
"""Statuses that asv shows as n/a; every other failure fails the asv case, and asv exits with status 2."""

HUNG_AFTER = 0.3
"""Of asv's `timeout` (seconds of silence), after which a visit has hung: before asv gives up on the whole class."""

Results = dict[str, dict[str, Any]]
"""What asv pickles between `setup_cache` and `track_*`: case key -> status, reason, samples_s, peak_bytes, facts."""


def measure_class(benchmark: Any) -> Results:
    """Measure the selected cases of one asv class; call it from a `setup_cache` written out in that class."""
    patterns, effort = selection(os.environ.get(ARGUMENTS, ""))
    effort = dataclasses.replace(effort, limit_s=HUNG_AFTER * benchmark.timeout)
    cases = [case for case in cases_of(benchmark) if is_selected(case, benchmark, patterns)]
    commit, checkout, records = _whereabouts()
    label = type(benchmark).__name__
    with contextlib.ExitStack() as held:
        held.enter_context(measuring(f"asv run: {label}", wait=lambda busy: print(busy, flush=True)))
        progress = held.enter_context(Progress(visits_of(cases, effort), label, os.environ.get(PROGRESS)))
        results = measure(cases, commit=commit, checkout=checkout, records=records, effort=effort, progress=progress)
    return {
        case_key(result.benchmark, result.params.values()): {
            "status": result.status,
            "reason": result.reason,
            "samples_s": list(result.samples_s),
            "peak_bytes": result.peak_bytes,
            "facts": result.facts,
        }
        for result in results
    }


def reported_time(benchmark: Any, results: Results, *params: Any) -> dict[str, Any]:
    """Samples in seconds, as asv wants them for its statistics."""
    return {"samples": _result(benchmark, results, params)["samples_s"], "number": 1}


def reported_peak_memory(benchmark: Any, results: Results, *params: Any) -> int:
    """Peak requested bytes."""
    return _result(benchmark, results, params)["peak_bytes"]


def reported_fact(benchmark: Any, results: Results, name: str, *params: Any) -> float:
    """A number beside the time, by its name in the workload's facts."""
    return _result(benchmark, results, params)["facts"][name]


def cases_of(benchmark: Any) -> list[Case]:
    """Every cell of a class's grid."""
    name = benchmark_name(benchmark)
    cells = (dict(zip(benchmark.param_names, cell, strict=True)) for cell in itertools.product(*benchmark.params))
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
        for params in cells
    ]


def benchmark_name(benchmark: Any) -> str:
    """`module.Class`, without the benchmark directory's own name, as asv has it."""
    return f"{type(benchmark).__module__.rpartition('.')[2]}.{type(benchmark).__name__}"


def selection(arguments: str) -> tuple[list[str], Effort]:
    """The `--bench` patterns and the effort that an asv command line asks for."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-b", "--bench", action="append", default=[])
    parser.add_argument("-q", "--quick", action="store_true")
    known, _ = parser.parse_known_args(shlex.split(arguments))
    return known.bench, QUICK if known.quick else FULL


def is_selected(case: Case, benchmark: Any, patterns: list[str]) -> bool:
    """asv's own rule: some pattern is found in `module.Class.method(params)` of some `track_*` method."""
    methods = [f"{case.benchmark}.{name}" for name in dir(benchmark) if name.startswith("track_")]
    names = [case_key(method, case.params.values()) for method in methods]
    return not patterns or any(re.search(pattern, name) for pattern in patterns for name in names)


def _result(benchmark: Any, results: Results, params: tuple[Any, ...]) -> dict[str, Any]:
    from asv_runner.benchmarks.mark import SkipNotImplemented

    result = results[case_key(benchmark_name(benchmark), params)]
    if result["status"] == "ok":
        return result
    reason = told(result)
    if result["status"] in NOT_APPLICABLE:
        raise SkipNotImplemented(reason)
    raise SystemExit(reason)


def _whereabouts() -> tuple[str, Path, Path]:
    """Commit, its checkout and the records folder, from what asv tells the processes it starts."""
    if os.environ.get("ASV_ENV_TYPE") != "linked":
        raise SystemExit(
            f"perf: environment type {os.environ.get('ASV_ENV_TYPE')!r} was given; allowed: 'linked' (the one in "
            "asv.conf.json), because only it can tell which commit's code is measured"
        )
    checkout = Path(os.environ["ASV_ENV_DIR"]) / "project"
    return os.environ["ASV_COMMIT"], checkout, Path(os.environ[RECORDS])
