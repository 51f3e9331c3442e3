"""Axes end at ticks, hold what they were given, and place it by per cent of their length."""

import pytest

from perf.site.axes import LinearAxis, LogAxis


def test_decades() -> None:
    axis = LogAxis([30.0, 2500.0], digits=(1,))
    assert axis.ticks == pytest.approx([10, 100, 1000, 10_000])
    assert [axis.at(value) for value in (10, 100, 31.6227766, 1e9, 0.0)] == [0, 33.33, 16.67, 100, 0]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0031, 0.0046], [0, 0.001, 0.002, 0.003, 0.004, 0.005]),
        ([-0.4, 2.0], [-0.5, 0, 0.5, 1, 1.5, 2]),
        ([0.0], [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ([], [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ([-3.0], [-3, -2, -1, 0]),
    ],
)
def test_a_linear_axis_holds_zero(values: list[float], ticks: list[float]) -> None:
    axis = LinearAxis(values)
    assert axis.ticks == pytest.approx(ticks)
    assert (axis.at(axis.low), axis.at(axis.high)) == (0, 100)
    assert all(axis.low <= value <= axis.high for value in [0.0, *values])
