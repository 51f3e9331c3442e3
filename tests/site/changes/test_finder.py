"""Where a series changed: steps put into drawn noise, and noise alone."""

import re
from pathlib import Path

import numpy as np
import pytest

from perf.site.changes.finder import FEWEST_FOR_NOISE, exact_steps, find, noise
from perf.site.changes.rates import KEPT, found, kept, rates

ROOT = Path(__file__).parents[3]
DOCUMENTED = " ".join((ROOT / "docs" / "gpu-machine.md").read_text(encoding="utf-8").split())


def drawn(levels, scatter, seed=0):
    return np.exp(np.log(levels) + scatter * np.random.default_rng(seed).standard_normal(len(levels)))


def steps(*arguments, **options):
    return find(*arguments, **options).steps


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e3])
def test_a_tenth_at_two_per_cent_of_noise_is_found_where_it_is(unit) -> None:
    """What asv's own finder misses."""
    (step,) = steps(unit * drawn([1.0] * 30 + [1.1] * 10, 0.02), negligible=0.01)
    assert (step.index, step.alone) == (30, False)
    assert step.low < 0.1 < step.high and step.high - step.low < 0.05
    assert step.before == pytest.approx(unit, rel=0.02) and step.after == pytest.approx(1.1 * unit, rel=0.02)


def test_every_level_is_found() -> None:
    levels = [1.0] * 15 + [0.8] * 5 + [0.9] * 12 + [0.5] * 8
    assert [step.index for step in steps(drawn(levels, 0.005), 0.01)] == [15, 20, 32]


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
    (step,) = steps(calm, 0.01)
    assert (step.index, step.alone) == (commits - 1, True)
    assert step.change == pytest.approx(0.5, rel=0.02)


def test_two_commits_make_a_level() -> None:
    (step,) = steps(drawn([1.0] * 10 + [1.5] * 2, 0.001), 0.01)
    assert (step.index, step.alone) == (10, False)


def test_what_is_negligible_is_none_however_sure_it_is() -> None:
    values = drawn([1.0] * 20 + [1.008] * 20, 0.0005)
    assert steps(values, negligible=0.01) == []
    assert [step.index for step in steps(values, negligible=0.005)] == [20]
    creep = drawn([1.0] * 10 + [1.008] * 10 + [1.016] * 10 + [1.024] * 10, 0.0003)
    large = steps(creep, negligible=0.01)
    assert large and all(step.change > 0.01 for step in large), "small ones together are one"


def test_a_short_series_is_not_believed_to_be_quieter_than_its_class() -> None:
    values = [1.0, 1.0, 1.0, 1.04, 1.04, 1.04]
    assert steps(values, negligible=0.01) == []
    assert steps(values, negligible=0.001) != []


def test_a_newest_value_between_two_others_is_no_change() -> None:
    assert steps([1.0, 2.25, 1.5], 0.01) == []
    assert [(step.index, step.alone) for step in steps([1.0, 2.25, 5.0], 0.01)] == [(2, True)]


def test_what_samples_leave_open_is_noise() -> None:
    values = drawn([1.0] * 10 + [1.05] * 10, 0.0005)
    assert steps(values, 0.01) != []
    assert steps(values, 0.01, sample_noise=0.05) == []


def test_equal_values_change_nowhere() -> None:
    assert steps([2.0] * 30, 0.01) == steps([2.0], 0.01) == []
    assert [step.index for step in steps([2.0] * 30 + [2.1] * 2, 0.01)] == [30]


def test_bytes_change_where_they_differ() -> None:
    changes = exact_steps([100, 100, 101, 101, 100])
    assert [(step.index, step.before, step.after, step.alone) for step in changes] == [
        (2, 100, 101, False),
        (4, 101, 100, False),
    ]
    assert changes[0].low == changes[0].high == pytest.approx(0.01)
    assert [step.index for step in exact_steps([1000, 1010, 1000, 1011], [0.01] * 3)] == [3]
    assert [step.index for step in exact_steps([1000, 1010, 1000], [0.01, 0.0])] == [2]


def test_sessions_that_share_an_offset_are_borders_and_no_levels() -> None:
    """The same numbers are a change where nobody knows of sessions, and where the step falls inside one."""
    sittings = [1] * 10 + [2] * 10 + [3] * 10 + [4] * 10
    values = drawn([1.0] * 10 + [1.05] * 10 + [0.98] * 10 + [1.02] * 10, 0.005)
    assert [step.index for step in find(values, 0.01).steps] == [10, 20, 30]
    said = find(values, 0.01, sessions=sittings)
    assert (said.steps, said.drift) == ([], None)
    assert [(step.index, step.border) for step in said.borders] == [(10, True), (20, True), (30, True)]
    with_a_step = find(values * np.repeat([1.0, 1.3], [24, 16]), 0.01, sessions=sittings)
    (inside,) = with_a_step.steps
    assert (inside.index, inside.border) == (24, False)
    changes = [step.change for step in with_a_step.borders]
    assert changes == pytest.approx([0.05, 0.98 / 1.05 - 1, 1.02 / 0.98 - 1], abs=0.01), "none spans the step"


def test_two_sessions_say_nothing_of_the_step_between_them() -> None:
    values = drawn([1.0] * 10 + [1.1] * 10, 0.005)
    result = find(values, 0.01, sessions=[1] * 10 + [2] * 10)
    assert (result.steps, [step.index for step in result.borders]) == ([], [10])
    (step,) = find(values, 0.01, sessions=list(range(20))).steps
    assert step.index == 10, "sessions of one commit scatter as the commits do"


def test_a_drift_is_one_with_its_rate() -> None:
    result = find(drawn(1.01 ** np.arange(40), 0.01), 0.01)
    assert result.steps == result.borders == []
    assert result.drift is not None
    assert result.drift.rate == pytest.approx(0.01, rel=0.05)
    assert result.drift.total == pytest.approx(1.01**39 - 1, rel=0.05)
    assert find(drawn(1.01 ** np.arange(40), 0.01), negligible=0.6).drift is None
    for flat in (drawn([1.0] * 40, 0.01), drawn([1.0] * 20 + [1.1] * 20, 0.01)):
        assert find(flat, 0.01).drift is None


def test_two_bad_runs_in_a_row_are_no_level_and_three_are() -> None:
    calm = drawn([1.0] * 30, 0.01)
    for length, expected in ((2, []), (3, [12, 15])):
        values = calm.copy()
        values[12 : 12 + length] *= 1.5
        assert [step.index for step in steps(values, 0.01)] == expected


def test_a_rare_bad_run_hides_no_step() -> None:
    values = drawn([1.0] * 20 + [1.1] * 20, 0.01)
    values[7] *= 1.5
    assert [step.index for step in steps(values, 0.01)] == [20]


def test_a_long_history_is_judged_in_windows() -> None:
    levels = np.repeat([1.0, 1.1, 1.0, 1.1], [74, 51, 1, 0])
    levels = np.r_[levels, np.full(174, 1.0)]
    assert [step.index for step in steps(drawn(levels, 0.01), 0.01)] == [74, 125]


def test_the_newest_alone_stands_beside_sessions() -> None:
    values = drawn([1.0] * 20, 0.001)
    values[-1] *= 1.5
    (step,) = steps(values, 0.01, sessions=[1] * 10 + [2] * 10)
    assert (step.index, step.alone) == (19, True)


@pytest.fixture(scope="module")
def drawn_rates():
    return rates(independent=1000, dependent=50, with_a_step=50, of_asv=4)


def test_flat_histories_show_a_change_in_at_most_5_of_100(drawn_rates) -> None:
    """Of independent noise none of a thousand; the others have 50 each, all 17 together at 3 %."""
    normal, tailed, *dependent = drawn_rates.flat
    assert normal[1].hits <= 1 and tailed[1].hits <= 2
    assert all(rate.hits <= 5 for _, rate in dependent), dependent
    assert sum(rate.hits for _, rate in dependent) <= 0.03 * sum(rate.of for _, rate in dependent)


def test_models_that_hold_levels_are_told_as_such(drawn_rates) -> None:
    """With their sessions in the records the same histories are flat."""
    unknown = dict(drawn_rates.hidden)["unrecorded sessions of 8 commits, offsets of 3 SD"]
    known = dict(drawn_rates.flat)["sessions of 8 commits, offsets of 3 SD"]
    assert unknown.share > 0.4 and known.share <= 0.05


def test_steps_are_found_as_the_readme_promises(drawn_rates) -> None:
    shares = {(cell.size, cell.after): cell.ours.share for cell in drawn_rates.found}
    assert shares[0.1, 10] > 0.9 and shares[0.15, 2] > 0.9
    assert sum(cell.asvs.share for cell in drawn_rates.found) < 0.7 * sum(shares.values())
    young = found(0.1, 3, 1000, 100)
    assert young.ours.share >= 0.88
    shares_in_words = re.findall(r"\| 40, 3 \| (\d+) % \| (\d+) % \|", DOCUMENTED)
    assert shares_in_words == [(f"{100 * young.ours.share:.0f}", f"{100 * young.asvs.share:.0f}")]


def test_the_rates_are_the_same_at_every_call() -> None:
    assert rates(4, 4, 4, 1) == rates(4, 4, 4, 1)


def test_the_rates_on_file_are_the_finders() -> None:
    """Those of a step are drawn anew, a tenth of them: a finder that has changed would not find as many."""
    for cell in kept().found:
        again = found(cell.size, cell.after, 40, 1)
        least, most = sorted((again.ours.share, cell.ours.share))
        assert most - least < 0.3, f"python -m perf.site.changes.rates writes {KEPT.name} anew"
