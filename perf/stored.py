"""What a file of asv's results has to be before it is published, merged or stored: asv takes any JSON."""

import ast
import functools
import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

MOST = 1e15
"""More seconds or bytes than anything takes; asv's finder of steps stands still over 1e308."""

_METHOD = re.compile(r"\w+(?:\.\w+)+", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
_UNIT = re.compile(r"[\w/ %]{0,20}", re.ASCII)
_FIELDS = {"commit_hash": str, "env_name": str, "date": int, "params": dict, "python": str, "requirements": dict}
_FIELDS |= {"result_columns": list, "results": dict, "version": int}
_LATEST = 4e12  # milliseconds since 1970: the year 2096


def problem_of_results(document: Any) -> str:
    """What is wrong with the JSON of one commit's results; "" if nothing is."""
    if not isinstance(document, dict):
        return f"a {type(document).__name__}; allowed: an object"
    for name, kind in _FIELDS.items():
        if type(document.get(name)) is not kind:
            return f"{name} is {document.get(name)!r:.60}; allowed: {kind.__name__}"
    if not _COMMIT.fullmatch(document["commit_hash"]) or not 0 <= document["date"] <= _LATEST:
        return f"commit_hash {document['commit_hash']!r:.60} of date {document['date']!r:.30} is no commit's"
    if not _is_words(document["params"]):
        return "params are no words"
    for method, row in document["results"].items():
        if wrong := _problem_of_row(method, row):
            return f"{method[:100]}: {wrong}"
    return ""


def problem_of_benchmark(name: str, entry: Any) -> str:
    """What is wrong with one entry of benchmarks.json, which asv's page shows as HTML; "" if nothing is."""
    if not _METHOD.fullmatch(name) or not isinstance(entry, dict) or entry.get("name") != name:
        return "its name is none of a benchmark"
    if not isinstance(entry.get("unit"), str) or not _UNIT.fullmatch(entry["unit"]):
        return f"unit is {entry.get('unit')!r:.60}; allowed: a word"
    names, axes = entry.get("param_names"), entry.get("params") or []
    if not isinstance(names, list) or not all(isinstance(one, str) and one.isidentifier() for one in names):
        return "param_names are no names"
    if not _is_axes(axes) or len(axes) != len(names) or re.search("[<>&]", "".join(itertools.chain(*axes))):
        return "params are no values of each of param_names"
    if not isinstance(entry.get("code", ""), str) or re.search("[<>&]", str(entry.get("pretty_name", ""))):
        return "code or pretty_name is no text"
    return ""


def _problem_of_row(method: str, row: Any) -> str:
    if not _METHOD.fullmatch(method):
        return "no name of a benchmark"
    if not isinstance(row, list) or len(row) < 2 or not _is_axes(row[1]):
        return "no row of asv's"
    cells = math.prod(map(len, row[1]))
    for column in (row[0], *row[5:]):
        if column is not None and (not isinstance(column, list) or len(column) != cells):
            return f"a column that is no list of its {cells} cells"
    for cell, value in zip(itertools.product(*row[1]), row[0] or (), strict=False):
        if value is None or (isinstance(value, float) and math.isnan(value)):  # a failure; n/a
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST:
            return f"{value!r:.40} of {', '.join(cell)[:100]} is no measured number"
        if value <= 0 and "'exposed'" not in cell:  # that is a difference
            return f"{value!r:.40} of {', '.join(cell)[:100]}; allowed: more than 0"
    return ""


def _is_axes(axes: Any) -> bool:
    return isinstance(axes, list) and all(
        isinstance(axis, list) and all(isinstance(value, str) and _is_literal(value) for value in axis) for axis in axes
    )


@functools.cache  # a history repeats the same hundred
def _is_literal(text: str) -> bool:
    """Whether it is a value that readers of results can evaluate, as asv's `repr` of our axes is."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_words(found: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) and (one is None or isinstance(one, str)) for name, one in found.items())
