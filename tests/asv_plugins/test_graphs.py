"""asv's graphs and step detection return the same as without our wrappers."""

import pytest
from asv import step_detect
from asv.graph import Graph

from perf.asv_plugins import graphs

graphs.install()


@pytest.mark.parametrize(
    "values",
    [
        [5.0] * 6,
        [None, 5.0, None, 5.0, None],
        [7] * 3,
        [5.0],
        [None],
        [],
        [float("nan"), 0.0, 0.0],
        [1.0, 1.0, 9.0, 9.0],
    ],
)
def test_a_constant_series_has_the_steps_that_asv_finds(values: list[float | None]) -> None:
    unweighted: list[None] = [None] * len(values)
    assert step_detect.detect_steps(values, unweighted) == step_detect.detect_steps.__wrapped__(values, unweighted)


def test_weights_are_left_to_asv() -> None:
    assert step_detect.detect_steps([5.0, 5.0, 5.0], [0.0, 1.0, 1.0])[0][0] == 1, "a weight of 0 is no point"


@pytest.mark.parametrize("points", [[1.0, 3.0, None, 5.0], [[1.0, 2.0], [3.0, None], [None, None], [5.0, 6.0]]])
def test_points_are_averaged_as_by_asv_and_again_after_a_new_one(points: list) -> None:
    graph = Graph("a.B", {})
    for number, point in enumerate(points):
        graph.add_data_point(number // 2, point)
    expected = Graph.get_data.__wrapped__(graph)
    assert graph.get_data() == graph.get_data() == expected
    graph.add_data_point(9, points[0])
    assert graph.get_data() == Graph.get_data.__wrapped__(graph)
    assert len(graph.get_data()) == len(expected) + 1
