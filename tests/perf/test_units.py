"""Quantities as people read them."""

import pytest

from perf import units


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0.0"), (0.00034, "0.034"), (0.0005, "0.050"), (0.003, "0.3"), (0.042, "4.2"), (0.0996, "10"), (0.61, "61")],
)
def test_a_small_percentage_keeps_two_digits(fraction: float, text: str) -> None:
    assert units.percent(fraction) == f"{text}\u00a0%"


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_percentage_that_is_not_finite_is_not_known(value: float) -> None:
    assert units.percent(value) == "?"
