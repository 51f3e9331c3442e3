"""What each row shows, how visits scatter, and where the pictures put it."""

import dataclasses
import math

import pytest

from perf.gate.report import Ended
from perf.gate.verdicts import Verdict
from perf.harness.injection import Injection
from perf.selection import asv_classes
from perf.site.trust import detectable
from perf.site.trust.detectable import axis_of
from tests.gate.reports import verdict
from tests.site.trust import made_up as self_tests

NEGLIGIBLE = {"attention.FlashAttention": (0.01, 3e-7)}


def part_of(*verdicts: Verdict) -> Ended:
    return Ended(None, "", verdicts, {}, 60.0)


def test_rows_are_sorted_by_what_they_show_and_know_their_floor() -> None:
    shown = [
        verdict("SAME", key="attention.FlashAttention(2)", min_detectable=0.03, base=1e-5),
        verdict("AMBIGUOUS", key="attention.FlashAttention(3)", min_detectable=None, base=None),
        verdict("SAME", key="attention.FlashAttention(1)", min_detectable=0.02, base=1.0),
        verdict("SAME", key="gone.Class(1)", min_detectable=0.01),
        verdict("SAME", key="attention.FlashAttention(4)", min_detectable=0.005, base=1.0, negligible=0.003),
    ]
    rows = detectable.rows(part_of(*shown), NEGLIGIBLE)
    assert [row.verdict.min_detectable for row in rows] == [0.005, 0.01, 0.02, 0.03, None]
    assert [row.floor for row in rows] == [0.003, None, 0.01, pytest.approx(0.03), None]


def test_the_newest_part_that_counts_is_shown() -> None:
    tests = [self_tests.read(self_tests.document(rows=1, commit=letter * 40)) for letter in "ab"]
    moved = self_tests.read(self_tests.document(rows=1, commit="c" * 40, contaminated=("identical code",)))
    found = detectable.newest([*tests, moved])
    assert found is not None
    assert found[0].commit == "b" * 40
    assert not found[1].injection
    assert detectable.newest([moved]) is None
    assert detectable.newest([]) is None


def test_every_class_that_asv_measures_says_what_is_negligible() -> None:
    assert all(len(cls.negligible) == 2 for name, cls, _ in asv_classes() if cls)


def test_visits_of_a_class_are_taken_together() -> None:
    test = self_tests.read(self_tests.document(rows=8))
    steady, short = detectable.spreads([test, test])
    assert (steady.benchmark, short.benchmark) == ("attention.FlashAttention", "attention.ShortAttention")
    assert (steady.rows, steady.visits) == (4, 2 * 4 * 18)
    assert 0 < steady.half < steady.most < short.most
    part = dataclasses.replace(test.parts[0], visits={"a.B(1)": [(0, math.log1p(n / 100)) for n in range(1, 21)]})
    [known] = detectable.spreads([dataclasses.replace(test, parts=(part,))])
    assert (known.half, known.most, known.median) == pytest.approx((0.105, 0.19, 0.105))
    wild = dataclasses.replace(part, visits={"a.B(1)": [(0, 1e300), (0, -1e300)]}, contaminated="")
    assert detectable.spreads([dataclasses.replace(test, parts=(wild,))])[0].most == pytest.approx(99)
    for ignored in ({"contaminated": "moved"}, {"injection": Injection("host", 0.05)}, {"visits": {"a.B(1)": []}}):
        assert not detectable.spreads([dataclasses.replace(test, parts=(dataclasses.replace(part, **ignored),))])


@pytest.mark.parametrize(
    ("shares", "ticks"),
    [
        ([0.012, 0.04], [0.01, 0.02, 0.05]),
        ([0.01], [0.01, 0.02]),
        ([0.02, 0.02], [0.02, 0.05]),
        ([], [0.01, 0.02, 0.05, 0.1]),
        ([1e-300, 1e300], None),
    ],
)
def test_an_axis_holds_everything_between_round_ticks(shares: list[float], ticks: list[float] | None) -> None:
    axis = axis_of(shares)
    assert ticks is None or axis.ticks == pytest.approx(ticks)
    assert (axis.at(axis.ticks[0]), axis.at(axis.ticks[-1])) == (0, 100)
    assert all(0 <= axis.at(share) <= 100 for share in [*shares, 1e-9, 1e9])


def test_a_picture_has_a_mark_for_each_row_that_shows_anything() -> None:
    shown = [
        verdict("SAME", min_detectable=0.02),
        verdict("SAME", key="gone.Class(1)", min_detectable=0.05),
        verdict("AMBIGUOUS", min_detectable=None),
    ]
    drawn = detectable.picture(detectable.rows(part_of(*shown), NEGLIGIBLE))
    first, second = drawn["marks"]
    assert (first["x"], second["x"]) == (25, 75)
    assert first["floor"] == 100 > first["detectable"] > second["detectable"] == 0
    assert second["floor"] is None


def test_what_nothing_could_have_shown_stands_at_the_top_of_the_picture() -> None:
    rows = detectable.rows(part_of(*(verdict("SAME", min_detectable=one) for one in (0.02, 1.0, 1e70))), NEGLIGIBLE)
    *_, whole, more = detectable.picture(rows)["marks"]
    assert whole["detectable"] == more["detectable"] == 0
