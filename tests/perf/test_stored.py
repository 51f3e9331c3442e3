"""Results are validated before asv publishes them: it accepts any JSON, shows it as HTML, or never ends."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from perf.stored import problem_of_benchmark, problem_of_results

RESULTS = Path(__file__).resolve().parents[2] / "perf" / "results"


def results(value: Any = 1.0, **changed: Any) -> dict[str, Any]:
    document = {"commit_hash": "a" * 40, "env_name": "linked", "date": 1, "params": {"machine": "m"}, "python": "3.12"}
    document |= {
        "requirements": {},
        "env_vars": {},
        "result_columns": ["result", "params"],
        "durations": {},
        "version": 2,
    }
    document["results"] = {"a.B.track_time": [[value, 2.0], [["1", "'exposed'"]], "1", 1, 0.1]}
    return document | changed


def benchmark(**changed: Any) -> dict[str, Any]:
    document = {"name": "a.B.track_time", "unit": "seconds", "param_names": ["n"], "params": [["1"]], "code": "x < 1"}
    return document | changed


def test_everything_on_file_passes() -> None:
    files = sorted(RESULTS.glob("*/*-*.json"))
    assert files
    assert {path.name: wrong for path in files if (wrong := problem_of_results(json.loads(path.read_text())))} == {}
    known = json.loads((RESULTS / "benchmarks.json").read_text())
    del known["version"]
    assert {
        name: wrong for name, definition in known.items() if (wrong := problem_of_benchmark(name, definition))
    } == {}


@pytest.mark.parametrize("value", [1.0, 3, None, math.nan])
def test_a_time_a_failure_and_a_gap_are_results(value: Any) -> None:
    assert problem_of_results(results(value)) == ""


@pytest.mark.parametrize("value", [math.inf, 1e308, 0, -1.0, "1", True, [1.0], {}, 10**400])
def test_what_nothing_measures_is_no_result(value: Any) -> None:
    assert "a.B.track_time" in problem_of_results(results(value))


@pytest.mark.parametrize(("series", "value", "passes"), [
    ("track_graph_breaks", 0, True), ("track_graph_breaks", -1, False), ("track_gathered_bytes", 0, True),
    ("track_peak_memory", 0, False),
])  # fmt: skip
def test_a_count_may_be_0(series: str, value: int, passes: bool) -> None:
    document = results()
    document["results"] = {f"a.B.{series}": [[value], [["1"]], "1", 1, 0.1]}
    assert (problem_of_results(document) == "") is passes


@pytest.mark.parametrize(("profile", "passes"), [
    (None, True), ("eJyFkl1I+/Q==", True), ("<script>", False), (1, False), ([1.0, 2.0], False),
])  # fmt: skip
def test_a_row_may_have_a_profile_as_asv_run_writes_it_with_that_option(profile: Any, passes: bool) -> None:
    document = results()
    document["results"]["a.B.track_time"] += [None] * 7 + [profile]
    assert (problem_of_results(document) == "") is passes


def test_a_difference_may_be_negative() -> None:
    document = results()
    document["results"]["a.B.track_time"][0] = [1.0, -2.0]
    assert problem_of_results(document) == ""


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        results(commit_hash="../../x"),
        results(date=1e400),
        results(date=10**30),
        results(params={"machine": ["m"]}),
        results(results=[]),
        results(env_vars=[]),
        results(durations=None),
        results(result_columns=["params", "result"]),
        results(result_columns=["result"]),
        results(result_columns=["result", None]),
        results(results={"<script>": [[1.0], []]}),
        results(results={"a.B": [[1.0]]}),
        results(results={"a.B": [[1.0, 2.0], [["1"]]]}),
        results(results={"a.B": [[1.0], [[1]]]}),
        results(results={"a.B": [[1.0], [["1"]], "1", 1, 0.1, [1.0, 2.0]]}),
    ],
)
def test_another_shape_is_no_result(document: Any) -> None:
    assert problem_of_results(document)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "another"},
        {"pretty_name": "<img src=x onerror=alert(1)>"},
        {"unit": "<b>"},
        {"param_names": ["<b>"]},
        {"params": [["'<b>'"]]},
        {"params": []},
        {"code": 1},
    ],
)
def test_what_asv_would_show_as_html_is_no_benchmark(changed: dict[str, Any]) -> None:
    assert problem_of_benchmark("a.B.track_time", benchmark()) == ""
    assert problem_of_benchmark("a.B.track_time", benchmark(**changed))


def test_an_axis_of_what_is_no_value_is_no_result() -> None:
    row = [[1.0], [["7'exposed'"]], "1", 1, 0.1]
    assert "a.B.track_time" in problem_of_results(results(results={"a.B.track_time": row}))
    assert "params" in problem_of_benchmark("a.B.track_time", benchmark(params=[["7x"]]))
