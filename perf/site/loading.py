"""asv's results and our records as one table, for a notebook."""

import ast
import itertools
import math
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.harness import records
from perf.harness.records import CaseResult
from perf.site import recorded
from perf.site.completed import is_of
from perf.site.estimate import estimate
from perf.stored import problem_of_benchmark, problem_of_results, read_object

if TYPE_CHECKING:
    import pandas

COLUMNS = ["machine", "environment", "commit", "date", "benchmark", "quantity", "unit"]
COLUMNS += ["value", "low", "high", "samples", "visits", "started_at", "status", "reason"]

RESULTS = Path(__file__).resolve().parents[1] / "results"


def load(results: str | Path = RESULTS) -> "pandas.DataFrame":
    """Load a row for each measured cell of every commit and machine. Cells never measured have no row.

    machine, environment, commit (40 digits), date (the commit's, UTC)
    benchmark        `module.Class`, as asv names it
    quantity, unit   "time" in seconds, "peak_memory" in bytes, or another of the class's `track_*`
    the axes         a column for each axis of any class: size, seq_len, d, dtype, impl, mode, ...
    value, low, high the median, and its 95 % interval as our pages show it; bytes do not vary
    samples, visits  samples in seconds, in order, and the number of visits; None without a record
    status, reason   "ok" and ""; or "out_of_memory", "wrong", ... and the reason, without a value
    started_at       time of the measurement, UTC; None without a record

    `results` is asv's results folder, with the records beside it. An unreadable file is left out with a warning; an
    unreadable record leaves out samples only. Raises `ValueError` if the folder is not one of asv's.

        frame = perf.site.latest(perf.site.load())
        cells = frame.query("benchmark == 'attention.FlashAttention' and d == 64 and dtype == 'bfloat16'")
        cells.query("quantity == 'time'").pivot(index=["machine", "seq_len"], columns=["mode", "impl"], values="value")
    """
    import pandas

    results = Path(results)
    benchmarks = _benchmarks(results / "benchmarks.json")
    directory = results.parent / "records"
    rows = [row for path in sorted(results.glob("*/*.json")) for row in _rows(path, benchmarks, directory)]
    frame = pandas.DataFrame(rows, columns=None if rows else COLUMNS)
    for name in frame.columns.difference(["value", "low", "high"]):
        kinds = {type(value) for value in frame[name].dropna()}
        if kinds == {float} and (frame[name].dropna() % 1 == 0).all():  # integers, and cells without this axis
            frame[name] = frame[name].astype("Int64")
    return frame.sort_values(["machine", "date", "benchmark"], kind="stable", ignore_index=True)


def latest(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """Keep each cell's row of the newest commit with a value, on each machine, of a table from `load`.

    A cell without a value at any commit keeps its newest row, with status and reason.
    """
    axes = list(frame.columns.difference(COLUMNS, sort=False))
    ordered = frame.assign(has_value=frame["value"].notna())
    ordered = ordered.sort_values(["has_value", "date", "started_at"], kind="stable", na_position="first")
    last = ordered.drop_duplicates(["machine", "benchmark", "quantity", *axes], keep="last").index
    return frame.loc[last.sort_values()].reset_index(drop=True)


def _benchmarks(path: Path) -> dict[str, Any]:
    try:
        found = read_object(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path.parent} was given; allowed: a folder that asv run wrote ({path.name}: {error})"
        ) from None
    found.pop("version", None)
    for name in list(found):
        if wrong := problem_of_benchmark(name, found[name]):
            warnings.warn(f"{path}: {name[:100]!a} is left out: {wrong}", stacklevel=4)
            del found[name]
    return found


def _rows(path: Path, benchmarks: dict[str, Any], directory: Path) -> Iterator[dict[str, Any]]:
    from asv.results import Results
    from asv.util import UserError

    if path.name == "machine.json":
        return
    try:
        found = Results.load(str(path))
        date = datetime.fromtimestamp(found.date / 1000, UTC)
        common = {"machine": found.params["machine"], "environment": found.env_name, "commit": found.commit_hash}
        common |= {"date": date}
        if wrong := problem_of_results(read_object(path)):
            raise ValueError(wrong)
    except (UserError, AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        warnings.warn(f"{path} is left out: {error}", stacklevel=4)
        return
    cases = _recorded(directory, found)
    for method in found.get_all_result_keys():
        if method not in benchmarks or found.benchmark_version[method] != benchmarks[method]["version"]:
            continue  # a former benchmark has no axis names, a former version means something else
        names, axes = benchmarks[method]["param_names"], found.get_result_params(method)
        benchmark, _, track = method.rpartition(".")
        quantity = track.removeprefix("track_")
        cells = list(itertools.product(*([ast.literal_eval(value) for value in axis] for axis in axes)))
        values = found.get_result_value(method, axes) or [None] * len(cells)
        for cell, value in zip(cells, values, strict=True):
            case = cases.get((benchmark, cell))
            if (row := _measured(value, quantity, case)) is not None:
                yield (
                    common
                    | {"benchmark": benchmark, "quantity": quantity, "unit": benchmarks[method]["unit"]}
                    | dict(zip(names, cell, strict=True))
                    | row
                )


def _recorded(directory: Path, found: Any) -> dict[tuple[str, tuple[Any, ...]], CaseResult]:
    """Return the commit's recorded cases with the same versions of torch and Triton."""
    machine, commit = found.params["machine"], found.commit_hash
    on_file = recorded.read(directory, machine, commit)
    if on_file.trouble:  # The values stay; only samples and intervals are missing.
        warnings.warn(f"{directory / machine / commit}.jsonl.gz {on_file.trouble}", stacklevel=5)
    cases = records.summarize(on_file.lines)
    return {(one.benchmark, tuple(one.params.values())): one for one in cases if is_of(one, found)}


def _measured(value: float | None, quantity: str, case: CaseResult | None) -> dict[str, Any] | None:
    """Return a row's figures; None for a cell never measured. asv stores NaN for that and n/a, null for a failure."""
    row: dict[str, Any] = {"value": math.nan, "low": math.nan, "high": math.nan, "samples": None, "visits": None}
    row |= {"started_at": datetime.fromisoformat(case.session.started_at) if case else None}
    if value is None or math.isnan(value):
        if case and case.status != "ok":
            return row | {"status": case.status, "reason": case.reason}
        return row | {"status": "error", "reason": "no record says why"} if value is None else None
    row |= {"value": value, "low": value, "high": value, "status": "ok", "reason": ""}
    if quantity == "time":
        interval = estimate(case)
        row |= (
            {"low": interval.low, "high": interval.high}
            if interval and math.isfinite(interval.high)
            else {"low": math.nan, "high": math.nan}
        )
        if case:
            row |= {"samples": list(case.samples_s), "visits": len(case.visits_s)}
    return row
