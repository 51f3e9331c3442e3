"""Validation of asv's result files before they are published, merged or stored: asv accepts any JSON."""

import ast
import functools
import itertools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_VALUE = 1e15
"""Upper bound of any measured seconds or bytes; asv's step detection never ends on a value of 1e308."""

COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25"]
COLUMNS += ["stats_q_75", "stats_number", "stats_repeat", "samples", "profile"]
"""asv's columns of a row, in its order."""

PROFILE_COLUMN = COLUMNS.index("profile")
"""Place of `asv run --profile`'s text among asv's columns: one for the whole row, and the last."""

_METHOD = re.compile(r"\w+(?:\.\w+)+", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
_PROFILE = re.compile("[A-Za-z0-9+/=]*")
_UNIT = re.compile(r"[\w/ %]{0,20}", re.ASCII)
_FIELDS = {"commit_hash": str, "env_name": str, "date": int, "params": dict, "python": str, "requirements": dict}
_FIELDS |= {"result_columns": list, "results": dict, "version": int}
_OPTIONAL = ("env_vars", "durations")
"""Objects that asv takes for empty where they are missing."""
_MAX_DATE = 4e12  # milliseconds since 1970: the year 2096


def read(path: Path) -> dict[str, Any]:
    """Read a file of asv's: results, benchmarks.json or machine.json.

    Raises `click.ClickException` with one line for a file that cannot be read or has a fault.
    """
    import click  # which the scripts of a workflow do without, like all that is installed

    try:
        document = read_object(path)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from None
    if path.name not in ("machine.json", "benchmarks.json"):
        problem = problem_of_results(document)
    else:
        entries = document.items() if path.name == "benchmarks.json" else ()
        problem = next(filter(None, (problem_of_benchmark(*one) for one in entries if one[0] != "version")), "")
    if problem:
        raise click.ClickException(f"{path} is not a file of asv's: {problem}")
    return document


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `OSError`, and `ValueError` for a file with anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__}; allowed: an object")
    return document


def problem_of_results(document: Any) -> str:
    """Describe the first fault in the JSON of a commit's results; "" if there is none."""
    if not isinstance(document, dict):
        return f"a {type(document).__name__}; allowed: an object"
    for name, kind in _FIELDS.items():
        if type(document.get(name)) is not kind:
            return f"{name} is {document.get(name)!r:.60}; allowed: {kind.__name__}"
    if not _COMMIT.fullmatch(document["commit_hash"]) or not 0 <= document["date"] <= _MAX_DATE:
        return f"commit_hash {document['commit_hash']!r:.60} of date {document['date']!r:.30} is not a commit's"
    for name in _OPTIONAL:
        if not isinstance(document.get(name, {}), dict):
            return f"{name} is {document[name]!r:.60}; allowed: dict"
    if not _is_text(document["params"]):
        return "params are not text"
    if (columns := document["result_columns"]) != COLUMNS[: max(2, len(columns))]:
        return f"result_columns are {columns!r:.60}; allowed: those of asv, in its order"
    for method, row in document["results"].items():
        if problem := _problem_of_row(method, row):
            return f"{method[:100]}: {problem}"
    return ""


def problem_of_benchmark(name: str, entry: Any) -> str:
    """Describe the first fault in an entry of benchmarks.json, which asv's page shows as HTML; "" if there is none."""
    if not _METHOD.fullmatch(name) or not isinstance(entry, dict) or entry.get("name") != name:
        return "its name is not a benchmark's"
    if not isinstance(entry.get("unit"), str) or not _UNIT.fullmatch(entry["unit"]):
        return f"unit is {entry.get('unit')!r:.60}; allowed: a word"
    names, axes = entry.get("param_names"), entry.get("params") or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        return "param_names are not identifiers"
    if not _is_axes(axes) or len(axes) != len(names) or re.search("[<>&]", "".join(itertools.chain(*axes))):
        return "params are not a list of values for each of param_names"
    if not isinstance(entry.get("code", ""), str) or re.search("[<>&]", str(entry.get("pretty_name", ""))):
        return "code or pretty_name is not text"
    return ""


def _problem_of_row(method: str, row: Any) -> str:
    if not _METHOD.fullmatch(method):
        return "not the name of a benchmark"
    if not isinstance(row, list) or len(row) < 2 or not _is_axes(row[1]):
        return "not a row of asv's"
    cells, is_positive = math.prod(map(len, row[1])), method.endswith((".track_time", ".track_peak_memory"))
    for column in (row[0], *row[5:PROFILE_COLUMN]):
        if column is not None and (not isinstance(column, list) or len(column) != cells):
            return f"a column is not a list of its {cells} cells"
    for profile in row[PROFILE_COLUMN:]:
        if profile is not None and not (isinstance(profile, str) and _PROFILE.fullmatch(profile)):
            return "its profile is not base64"
    for cell, value in zip(itertools.product(*row[1]), row[0] or (), strict=False):
        if value is None or (isinstance(value, float) and math.isnan(value)):  # a failure; n/a
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_VALUE:
            return f"{value!r:.40} of {', '.join(cell)[:100]} is not a measured number"
        if "'exposed'" in cell:  # a difference of two times, which may be negative
            continue
        if value < 0 or (value == 0 and is_positive):
            allowed = "more than 0" if is_positive else "0 or more"
            return f"{value!r:.40} of {', '.join(cell)[:100]}; allowed: {allowed}"
    return ""


def _is_axes(axes: Any) -> bool:
    return isinstance(axes, list) and all(
        isinstance(axis, list) and all(isinstance(value, str) and _is_literal(value) for value in axis) for axis in axes
    )


@functools.cache  # a history repeats the same hundred values
def _is_literal(text: str) -> bool:
    """Return whether readers of results can evaluate `text`, as they do asv's `repr` of an axis value."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_text(params: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) and (value is None or isinstance(value, str)) for name, value in params.items())
