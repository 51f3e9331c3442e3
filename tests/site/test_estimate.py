import math

import pytest

from perf.site.attention.catalogue import SECTIONS
from perf.site.attention.cells import Show, _speedup, case_row
from perf.site.attention.rows import build_rows
from perf.site.estimate import Estimate, estimate, ratio, shortest
from tests.site.cases import case


def test_the_interval_comes_from_the_spread_between_visits() -> None:
    time = estimate(case(visits=((1.0,) * 4, (1.1,) * 4, (1.2,) * 4)))
    assert time is not None
    assert time.median == pytest.approx(1.1)
    assert time.high - time.median == pytest.approx(4.302653 * 0.1 / 3**0.5)
    assert time.low == pytest.approx(2 * time.median - time.high)


def test_two_visits_fall_back_to_the_samples() -> None:
    time = estimate(case(visits=((1.0, 1.1), (1.2, 1.3))))
    assert time is not None
    assert time.median == pytest.approx(1.15)
    assert time.low < time.median < time.high


@pytest.mark.parametrize("samples", [(1.0, 1.0), (1.0, 2.0)])
def test_a_handful_of_samples_is_no_error(samples: tuple[float, ...]) -> None:
    time = estimate(case(visits=(samples,)))
    assert time is not None
    assert time.low >= min(samples)


def test_one_sample_has_no_interval_and_nothing_is_better_or_worse_than_it() -> None:
    time = estimate(case(visits=((1.0,),)))
    assert time is not None
    assert (time.median, time.low, time.high) == (1.0, 0.0, math.inf)
    (row,), _ = build_rows(
        [case(visits=((1.0,),)), case("sdpa"), case("reference", visits=((9.0,) * 4,) * 3)], "triton"
    )
    assert {one.ratio and one.ratio.verdict for one in row.speedups.values()} == {"even"}
    spread = _speedup(row.speedups["sdpa"], SECTIONS["attention.FlashAttention"]).title
    assert "?" in spread and "inf" not in spread
    assert "inf" not in str(
        case_row(row, [], Show(SECTIONS["attention.FlashAttention"], lambda *series: "", (1.0, "")))
    )


def test_a_difference_of_times_may_be_negative_where_a_time_is_not() -> None:
    difference = estimate(case(visits=((-1.0,) * 4, (-1.1,) * 4, (-1.2,) * 4)))
    assert difference is not None
    assert difference.low == pytest.approx(-1.1 - 4.302653 * 0.1 / 3**0.5)
    wide = estimate(case(visits=((0.1,) * 4, (1.0,) * 4, (9.0,) * 4)))
    assert wide is not None
    assert wide.low == 0.0


def test_only_a_time_apart_from_all_others_is_the_shortest() -> None:
    """Intervals of 3 and 4 % add up to 5 %."""
    times = {"slow": Estimate(2.0, 1.9, 2.1), "a": Estimate(1.0, 0.97, 1.03), "b": Estimate(1.04, 0.9984, 1.0816)}
    assert shortest(times) == ["a", "b"]
    assert shortest(times | {"b": Estimate(1.06, 1.0176, 1.1024)}) == ["a"]
    assert shortest({"alone": Estimate(1.0, 0.0, math.inf), "other": Estimate(9.0, 8.9, 9.1)}) == ["alone", "other"]
    assert shortest({}) == []
    found = ratio(times["a"], times["slow"])
    assert (found.value, found.verdict) == (2.0, "better") and ratio(times["slow"], times["a"]).verdict == "worse"


def test_no_samples_no_estimate() -> None:
    assert estimate(None) is None
    assert estimate(case(visits=(), status="crashed")) is None
