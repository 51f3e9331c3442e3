"""Rates are pooled over self-tests: what counts, and what does not."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from perf.gate.rate import Rate
from perf.gate.report import SelfTest
from perf.gate.verdicts import Word
from perf.site.trust import rates
from perf.site.trust.rates import Pooled
from tests.site.trust import made_up as self_tests


def made(**changes: Any) -> SelfTest:
    return self_tests.read(self_tests.document(**changes))


def by_title(*tests: SelfTest) -> dict[str, Pooled]:
    return {part.title: part for part in rates.pool(tests)}


def test_rows_of_all_self_tests_are_pooled_part_by_part() -> None:
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
    parts = by_title(made(rows=18, started_at=early), made(rows=9, started_at=late, commit="b" * 40))
    assert list(parts) == [
        "identical code",
        "0.5 % on the device",
        "1 % on the device",
        "2 % on the device",
        "5 % on the device",
        "5 % on the host",
        "1 MiB of memory",
    ]
    identical = parts["identical code"]
    assert (identical.rate, identical.ambiguous, identical.wrong_tests, identical.tests) == (Rate(0, 27), 3, 0, 2)
    assert parts["1 % on the device"].rate == Rate(9, 27)
    assert parts["2 % on the device"].rate == Rate(25, 27)
    assert parts["1 MiB of memory"].rate == Rate(27, 27)
    assert (identical.first, identical.last) == (early, late)
    assert identical.commits == (self_tests.COMMIT, "b" * 40)


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    rate = by_title(made(rows=59))["identical code"].rate
    assert rate.upper == pytest.approx(1 - 0.05 ** (1 / 59))


def test_a_false_alarm_counts_once_a_row_and_once_a_self_test() -> None:
    def false(number: int, part: str) -> Word:
        return "SLOWER" if number < 2 else "FASTER" if number == 2 else "SAME"

    identical = by_title(made(rows=10, say=false), made(rows=10))["identical code"]
    assert (identical.rate, identical.faster, identical.wrong_tests, identical.tests) == (Rate(2, 20), 1, 1, 2)


def test_parts_whose_controls_moved_do_not_count() -> None:
    moved = made(rows=10, contaminated=("identical code", "5 % on the host"))
    parts = by_title(moved, made(rows=10))
    assert parts["identical code"].rate.of == 10
    assert parts["2 % on the device"].rate.of == 20
    assert [part.title for _, part in rates.contaminated([moved])] == ["identical code", "5 % on the host"]
    assert "identical code" not in by_title(moved)


def test_a_row_that_could_not_have_shown_anything_cannot_be_right_about_identical_code() -> None:
    document = self_tests.document(rows=4)
    for part in document["parts"][:5]:  # no row here shows what is planted on the host
        part["verdicts"][0] |= {"word": "AMBIGUOUS", "smallest_visible": None}
    document["parts"][0]["verdicts"][1] |= {"word": "SLOWER", "smallest_visible": None}
    parts = by_title(self_tests.read(document))
    assert (parts["identical code"].rate, parts["identical code"].unmeasured) == (Rate(0, 2), 2)
    assert parts["5 % on the device"].rate == Rate(3, 4), "what was not measured was not found"


def test_self_tests_of_older_rules_are_left_out() -> None:
    old = self_tests.document(rows=4)
    for row in old["parts"][0]["verdicts"]:
        del row["negligible"]
    kept = rates.of_present_rules([self_tests.read(old), made(rows=4)])
    assert [len(test.parts) for test in kept] == [6, 7]
    assert rates.of_present_rules([self_tests.read(old | {"parts": old["parts"][:1]})]) == []


def test_rows_of_the_last_look_are_counted() -> None:
    document = self_tests.document(rows=3)
    key = document["parts"][0]["verdicts"][1]["key"]
    document["parts"][0]["visits"][key] = [[process, 0.001] for process in range(12)]
    identical = by_title(self_tests.read(document), made(rows=2))["identical code"]
    assert (identical.rate, identical.at_last_look) == (Rate(0, 5), 1)


def test_no_self_tests_have_no_rates() -> None:
    assert rates.pool([]) == []


@pytest.mark.parametrize(
    ("rate", "at_most", "expected"),
    [
        (Rate(1, 2), True, "50.0 %, at most 97.5 %"),
        (Rate(1, 2), False, "50.0 %, at least 2.5 %"),
        (Rate(0, 3), True, "0.0 %, at most 63.2 %"),
        (Rate(0, 3), False, "0.0 %, at least 0.0 %"),
        (Rate(3, 3), False, "100.0 %, at least 36.8 %"),
        (Rate(0, 10_000), True, "0.0 %, at most 0.030 %"),
        (Rate(1, 10_000), True, "0.010 %, at most 0.047 %"),
        (Rate(0, 0), True, "-"),
    ],
)
def test_a_rate_in_words(rate: Rate, at_most: bool, expected: str) -> None:
    assert rate.words(at_most=at_most) == expected


def test_a_bound_is_never_rounded_to_the_side_that_claims_more() -> None:
    for of in range(1, 200):
        upper, lower = Rate(0, of), Rate(of, of)
        assert float(upper.bound(at_most=True).split()[2]) >= 100 * upper.upper - 1e-9
        assert float(lower.bound(at_most=False).split()[2]) <= 100 * lower.lower + 1e-9
    assert math.isclose(Rate(0, 59).upper, 1 - Rate(59, 59).lower)
