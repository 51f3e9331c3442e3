"""Where a series changed: steps put into drawn noise, and noise alone."""

from pathlib import Path

import numpy as np
import pytest

from perf.report.changes.finder import FEWEST_FOR_NOISE, exact_steps, noise, steps
from perf.report.changes.rates import rates

ROOT = Path(__file__).parents[3]


def drawn(levels, scatter, seed=0):
    return np.exp(np.log(levels) + scatter * np.random.default_rng(seed).standard_normal(len(levels)))


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e3])
def test_a_tenth_at_two_per_cent_of_noise_is_found_where_it_is(unit) -> None:
    """What asv's own finder misses."""
    (found,) = steps(unit * drawn([1.0] * 30 + [1.1] * 10, 0.02), negligible=0.01)
    assert (found.index, found.alone) == (30, False)
    assert found.low < 0.1 < found.high and found.high - found.low < 0.05
    assert found.before == pytest.approx(unit, rel=0.02) and found.after == pytest.approx(1.1 * unit, rel=0.02)


def test_every_level_is_found() -> None:
    levels = [1.0] * 15 + [0.8] * 5 + [0.9] * 12 + [0.5] * 8
    assert [one.index for one in steps(drawn(levels, 0.005), 0.01)] == [15, 20, 32]


def test_noise_is_not_moved_by_changes() -> None:
    levels = np.repeat([1.0, 1.5, 0.7, 1.2, 3.0], 40)
    assert noise(drawn(levels, 0.01), least=9.0) == pytest.approx(0.01, rel=0.15)
    assert noise([1.0] * (FEWEST_FOR_NOISE - 1), least=9.0) == 9.0


@pytest.mark.parametrize("commits", [2, 3, 4, 5, 10, 50])
def test_one_bad_run_is_no_change_and_the_newest_alone_is_not_sure(commits) -> None:
    calm = drawn([1.0] * commits, 0.001)
    for at in range(1, commits - 1):
        values = calm.copy()
        values[at] *= 1.5
        assert steps(values, 0.01) == [], at
    calm[-1] *= 1.5
    (found,) = steps(calm, 0.01)
    assert (found.index, found.alone) == (commits - 1, True)
    assert found.change == pytest.approx(0.5, rel=0.02)


def test_two_commits_make_a_level() -> None:
    (found,) = steps(drawn([1.0] * 10 + [1.5] * 2, 0.001), 0.01)
    assert (found.index, found.alone) == (10, False)


def test_what_is_negligible_is_none_however_sure_it_is() -> None:
    values = drawn([1.0] * 20 + [1.008] * 20, 0.0005)
    assert steps(values, negligible=0.01) == []
    assert [one.index for one in steps(values, negligible=0.005)] == [20]
    creep = drawn([1.0] * 10 + [1.008] * 10 + [1.016] * 10 + [1.024] * 10, 0.0003)
    found = steps(creep, negligible=0.01)
    assert found and all(one.change > 0.01 for one in found), "small ones together are one"


def test_a_short_series_is_not_believed_to_be_quieter_than_its_class() -> None:
    values = [1.0, 1.0, 1.0, 1.04, 1.04, 1.04]
    assert steps(values, negligible=0.01) == []
    assert steps(values, negligible=0.001) != []


def test_a_newest_value_between_two_others_is_no_change() -> None:
    assert steps([1.0, 2.25, 1.5], 0.01) == []
    assert [(one.index, one.alone) for one in steps([1.0, 2.25, 5.0], 0.01)] == [(2, True)]


def test_what_samples_leave_open_is_noise() -> None:
    values = drawn([1.0] * 10 + [1.05] * 10, 0.0005)
    assert steps(values, 0.01) != []
    assert steps(values, 0.01, sample_noise=0.05) == []


def test_equal_values_change_nowhere() -> None:
    assert steps([2.0] * 30, 0.01) == steps([2.0], 0.01) == []
    assert [one.index for one in steps([2.0] * 30 + [2.1] * 2, 0.01)] == [30]


def test_bytes_change_where_they_differ() -> None:
    found = exact_steps([100, 100, 101, 101, 100])
    assert [(one.index, one.before, one.after, one.alone) for one in found] == [
        (2, 100, 101, False),
        (4, 101, 100, False),
    ]
    assert found[0].low == found[0].high == pytest.approx(0.01)
    assert [one.index for one in exact_steps([1000, 1010, 1000, 1011], 0.01)] == [3]


def test_the_rates_are_what_the_docstrings_promise() -> None:
    found = rates()
    assert (found.normal.hits, found.tailed.hits) <= (2, 8)
    shares = {(one.size, one.after): one.ours.share for one in found.found}
    assert shares[5, 3] > 0.9 and shares[8, 2] > 0.95
    assert sum(one.asvs.share for one in found.found) < 0.7 * sum(shares.values())
    asvs = {(one.size, one.after): one.asvs.share for one in found.found}
    in_words = f"in {100 * shares[5, 3]:.0f} of 100 histories, by asv's own finder in {100 * asvs[5, 3]:.0f})"
    assert in_words in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_the_rates_are_the_same_at_every_call() -> None:
    assert rates(100, 10, 1) == rates(100, 10, 1)
