"""Series from asv's graphs, and the changes in them."""

from types import SimpleNamespace

import pytest

from perf.site.changes.rows import series_of
from tests.site.changes.made_up import changes_of, machine_of, series

BENCHMARKS = {
    "a.Class.track_time": {"unit": "seconds", "params": [["1", "2"], ["'x'"]], "param_names": ["n", "kind"]},
    "a.Class.track_peak_memory": {"unit": "bytes", "params": [["1", "2"], ["'x'"]], "param_names": ["n", "kind"]},
    "a.Class.track_state_bytes": {"unit": "bytes", "params": [["1"]], "param_names": ["n"]},
    "a.One.track_time": {"unit": "seconds", "params": [], "param_names": []},
    "a.Class.track_rate": {"unit": "percent", "params": [], "param_names": []},
}
NAN = float("nan")


def graph(name, points, **params):
    params = {"machine": "h200"} | params
    return name, SimpleNamespace(benchmark_name=name, params=params, get_data=lambda: points)


def test_every_cell_of_every_graph_is_a_series() -> None:
    graphs = [
        graph(
            "a.Class.track_time",
            [(3, [1.0, None], [200.0, None]), (5, [1.1, 2.0], [None, None]), (9, [NAN, 3.0], [1, 1])],
        ),
        graph("a.Class.track_peak_memory", [(3, [7, 8], [None, None]), (5, [7, 0], [None, None])]),
        graph("a.One.track_time", [(3, 1.0, None), (5, 2.0, None)]),
        graph("a.One.track_time", [(3, 1.0, None)], torch="2.12"),
        graph("a.One.track_time", [(3, 1.0, None), (4, 1.0, None)], machine="other"),
        graph("a.Class.track_rate", [(3, 1.0, None), (4, 1.0, None)]),
        graph("a.Gone.track_time", [(3, 1.0, None), (4, 1.0, None)]),
    ]
    first, second, memory, only = series_of(graphs, BENCHMARKS, "h200", lambda revision: lambda *case: "3")
    assert (first.name, first.revisions, first.values) == ("a.Class(1, 'x')", (3, 5), (1.0, 1.1))
    assert first.sample_noise == pytest.approx(1 / 200 / 2.576)
    assert (second.revisions, second.values) == ((5, 9), (2.0, 3.0))
    assert (memory.quantity, memory.values, memory.sample_noise) == ("peak_memory", (7, 7), 0.0)
    assert (only.name, only.params, only.values) == ("a.One()", {}, (1.0, 2.0))


@pytest.mark.parametrize(
    ("harnesses", "after", "words"),
    [
        ("3333", 1001, ["LARGER"]),  # one version is exact
        ("2222", 1010, []),  # blocks of an allocator are not
        ("2222", 1011, ["LARGER"]),
        ("2233", 1010, []),  # nor are two versions
        ("2233", 1011, ["LARGER"]),
        ("2233", 4300, ["LARGER"]),
        ("2233", 900, ["SMALLER"]),
        ("3344", 1010, []),
        ("3444", 1001, ["LARGER"]),
        ("3343", 1001, []),
    ],
)
def test_bytes_go_on_over_versions_of_the_harness(harnesses, after, words) -> None:
    """The harness of each case: a commit may have been measured once more, in part."""
    points = [(n, [value, 5.0], [None, None]) for n, value in enumerate((1000, 1000, after, after))]

    def harness_of(revision):
        return {("a.Class", (1, "x")): harnesses[revision], ("a.Class", (2, "x")): "2"}.__getitem__

    graphs = [graph("a.Class.track_peak_memory", points)]
    drawn = list(series_of(graphs, BENCHMARKS, "h200", lambda revision: lambda *case: harness_of(revision)(case)))
    assert [(each.params["n"], each.revisions) for each in drawn] == [(1, (0, 1, 2, 3)), (2, (0, 1, 2, 3))]
    assert [change.verdict.word for change in changes_of(drawn, {})] == words


def test_commits_of_one_sitting_are_one_session() -> None:
    graphs = [graph("a.One.track_time", [(n, 1.0, None) for n in (1, 2, 4, 7)])]
    sittings = {1: "monday A", 2: "monday A", 4: "monday B", 7: "monday A"}

    def sitting_of(revision):
        return lambda benchmark, params: sittings[revision] if (benchmark, params) == ("a.One", ()) else ""

    (known,) = series_of(graphs, BENCHMARKS, "h200", lambda revision: lambda *case: "3", sitting_of)
    assert known.sessions == (0, 0, 1, 0)
    (unknown,) = series_of(graphs, BENCHMARKS, "h200", lambda revision: lambda *case: "3")
    assert unknown.sessions is None


def test_a_method_of_its_own_is_part_of_the_name() -> None:
    assert series([1, 2], "a.Class.track_state_bytes").name == "a.Class.track_state_bytes(1)"


def test_changes_come_newest_first_and_the_greatest_of_a_commit_first() -> None:
    changes = changes_of(
        [
            series([1.0] * 4 + [1.1] * 8, n=1),
            series([1.0] * 4 + [2.0] * 4 + [1.0] * 4, n=2),
            series([10] * 6 + [9] * 6, "a.Class.track_peak_memory"),
        ],
        {},
    )
    assert [(change.revision, change.verdict.word, change.back) for change in changes] == [
        (8, "FASTER", None),
        (6, "SMALLER", None),
        (4, "SLOWER", 8),
        (4, "SLOWER", None),
    ]
    assert [change.series.params["n"] for change in changes[2:]] == [2, 1]


def test_a_value_that_goes_and_comes_has_not_gone_for_good() -> None:
    (first, *_) = reversed(changes_of([series([1.0] * 4 + [2.0] * 4 + [1.0] * 3 + [2.0] * 4)], {}))
    assert (first.revision, first.back) == (4, None)


def test_the_floors_are_those_of_the_class() -> None:
    step = series([1.0] * 6 + [1.05] * 6)
    assert changes_of([step], {"a.Class": (0.01, 0.0)})
    assert not changes_of([step], {"a.Class": (0.1, 0.0)})
    assert not changes_of([step], {"a.Class": (0.01, 0.2)}), "seconds count where they are more"


@pytest.mark.parametrize("name", ["controls.Controls", "controls.Clocks", "smoke.SmokeControls"])
def test_commits_at_which_controls_moved_are_known(name: str) -> None:
    control = series([1.0] * 6 + [1.5] * 6, f"{name}.track_time")
    assert machine_of(changes_of([control, series([1.0] * 4 + [2.0] * 8)], {})).controls == {6}


def test_one_bad_run_at_the_end_brings_nothing_back() -> None:
    slower = [1.0] * 12 + [1.5] * 8
    for values, is_back in (([*slower, 1.0], False), ([*slower, 1.0, 1.0], True)):
        (change, *_) = [one for one in changes_of([series(values)], {}) if one.step.index == 12]
        assert (change.back is not None) is is_back
