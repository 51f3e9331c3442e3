"""Confidence intervals cover at their level."""

import math

import numpy as np
import pytest

from perf.harness import intervals
from perf.harness.intervals import Interval, of_mean, of_median, of_trimmed_mean


def test_the_mean_has_students_interval():
    known = of_mean([1.0, 2.0, 3.0])
    assert known == Interval(2.0, pytest.approx(4.302653 / 3**0.5))
    assert (known.low, known.high) == (2.0 - known.half, 2.0 + known.half)
    assert of_mean([5.0]) == Interval(5.0, math.inf)


@pytest.mark.parametrize("of", [of_mean, of_trimmed_mean, of_median])
def test_nothing_has_no_interval(of):
    with pytest.raises(ValueError, match="no values"):
        of([])


def test_points_of_students_and_the_normal_distribution():
    assert intervals.student(16) == pytest.approx(2.119905)
    assert intervals.student(2, 0.99) == pytest.approx(9.924843)
    assert intervals.normal() == pytest.approx(1.959964)
    assert intervals.student(1e9) == pytest.approx(intervals.normal())


def test_one_number_far_off_leaves_the_trimmed_mean_where_it_is():
    calm = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]
    spoilt = of_trimmed_mean([*calm[:-1], 5.0])
    assert spoilt.value == pytest.approx(1.005)
    assert spoilt.half < 0.05 < of_mean([*calm[:-1], 5.0]).half
    assert of_trimmed_mean(calm[:4]) == of_mean(calm[:4])


@pytest.mark.parametrize(("of", "count"), [(of_trimmed_mean, 6), (of_median, 20)])
def test_an_interval_covers_what_it_says(of, count):
    drawn = np.random.default_rng(2).normal(size=(5000, count)).tolist()
    held = [known.low <= 0 <= known.high for known in map(of, drawn)]
    assert np.mean(held) == pytest.approx(intervals.LEVEL, abs=0.007)


def test_a_few_samples_say_half_their_range():
    assert of_median([3.0]) == Interval(3.0, 0.0)
    assert of_median([3.0, 1.0, 4.0]) == Interval(3.0, 1.5)
