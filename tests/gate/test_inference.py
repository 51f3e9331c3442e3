import numpy as np
import pytest
from scipy import stats

from perf.gate import inference, prior
from perf.gate.inference import LOOKS, decide, estimate
from perf.gate.prior import fit_prior
from perf.gate.variance import summarize, visit_change

ONE_LOOK = 1


def rows_of(rng, rows, processes, visits, *, effect=0.0, change=0.0, sd=0.01):
    """Changes [rows, processes, visits]: `effect` is the process effect's SD in units of a visit's."""
    noise = rng.normal(size=(rows, processes, visits)) + effect * rng.normal(size=(rows, processes, 1))
    return change + sd * noise


def test_a_visits_change_is_the_log_ratio_of_its_arms():
    base = np.linspace(1e-3, 1.1e-3, 40)
    assert visit_change(base, base * 1.02) == pytest.approx(np.log(1.02))


def test_a_visits_change_ignores_drift_order_and_outliers():
    rng = np.random.default_rng(0)
    drift = np.exp(np.linspace(0, 0.1, 40))
    second = np.tile([1.0, 1.005], 20)  # whoever comes second in a pair is slower: A B B A
    base = drift * second[::-1] * np.exp(0.001 * rng.normal(size=40))
    head = drift * second * np.exp(0.001 * rng.normal(size=40))
    head[[3, 17, 30]] *= 1.5
    assert visit_change(base, head) == pytest.approx(0, abs=0.0015)
    assert abs(np.log(head.mean() / base.mean())) > 0.02


def test_a_visits_change_resolves_less_than_a_tick_of_the_clock():
    rng = np.random.default_rng(1)
    tick = 32e-9
    visits = [[np.round(rng.normal(3.7e-6 * by, tick, 40) / tick) * tick for by in (1, 1.005)] for _ in range(300)]
    ours = [visit_change(base, head) for base, head in visits]
    medians = [np.median(np.log(head / base)) for base, head in visits]
    assert np.mean(ours) == pytest.approx(0.005, abs=0.001)
    assert np.std(ours) < 0.85 * np.std(medians)


@pytest.mark.parametrize("samples", [([], []), ([1.0], [1.0, 2.0]), ([[1.0]], [[1.0]])])
def test_samples_that_are_no_pairs_are_refused(samples):
    with pytest.raises(ValueError, match="pairs"):
        visit_change(*samples)


def test_the_floor_is_the_larger_of_a_share_and_seconds():
    assert inference.floor_of((0.01, 1e-7), 1e-3) == pytest.approx(np.log(1.01))
    assert inference.floor_of((0.01, 1e-7), 1e-6) == pytest.approx(np.log(1.1))


def test_the_analysis_of_variance_is_that_of_scipy():
    rng = np.random.default_rng(2)
    groups = [rng.normal(size=n) for n in (4, 2, 6)]
    padded = np.full((3, 6), np.nan)
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    got = summarize(padded[None])
    assert (got.between / got.within)[0] == pytest.approx(stats.f_oneway(*groups).statistic)
    assert got.change[0] == pytest.approx(np.concatenate(groups).mean())
    assert (got.within_dof[0], got.between_dof[0], got.visits[0]) == (9, 2, 12)


def test_unequal_counts_have_the_variance_that_is_reported():
    rng = np.random.default_rng(3)
    x = rows_of(rng, 40_000, 3, 8, effect=3.0, sd=0.01)
    x[:, 1, 2:] = np.nan
    x[:, 2, 5:] = np.nan
    got = summarize(x)
    reported = (got.between * got.imbalance / got.visits).mean()
    assert reported == pytest.approx(got.change.var(), rel=0.05)


def test_the_prior_is_found_again():
    rng = np.random.default_rng(4)
    scale, dof, between_dof, within_dof = 4.0, 8.0, 4, 20
    excess = scale * dof / rng.chisquare(dof, 100_000)
    rho = excess * rng.f(between_dof, within_dof, 100_000)
    ones = np.ones_like(rho)
    got_scale, got_dof = fit_prior(rho, between_dof * ones, within_dof * ones, ones > 0)
    assert got_scale == pytest.approx(scale, rel=0.03)
    assert got_dof == pytest.approx(dof, rel=0.1)


def test_rows_without_process_effects_lend_each_other_degrees_of_freedom():
    got = estimate(summarize(rows_of(np.random.default_rng(5), 200, 3, 6)))
    assert np.median(got.dof) > 12  # of 2 own
    assert np.all(got.dof <= 15 + 2)  # nor more than its visits have
    assert np.median(got.own_weight) < prior.OUTLIER_PRIOR


def test_a_row_unlike_the_others_is_judged_on_its_own():
    x = rows_of(np.random.default_rng(6), 200, 5, 6)
    x[7] += 0.05 * np.arange(-2, 3)[:, None]
    got = estimate(summarize(x))
    assert got.own_weight[7] > 0.99
    alone = stats.t.sf(0.1 / stats.sem(x[7].mean(-1)), 4)
    assert got.tail(np.full(200, 0.1))[7] == pytest.approx(alone, rel=0.1)


@pytest.mark.parametrize("effect", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("processes", [LOOKS[0], LOOKS[-1]])
def test_p_values_are_those_of_their_level_whatever_processes_do(effect, processes):
    rng = np.random.default_rng(7)
    slower = [
        inference.p_slower(estimate(summarize(rows_of(rng, 200, processes, 6, effect=effect))), 0.0) for _ in range(200)
    ]
    for level in (0.05, 0.01, 0.001):
        assert (np.array(slower) < level).mean() < 1.25 * level + 1e-4
    assert (np.array(slower) < 0.05).mean() > 0.03


def test_a_few_rows_with_process_effects_do_not_break_the_level():
    rng = np.random.default_rng(8)
    p = []
    for _ in range(200):
        x = rows_of(rng, 200, 5, 6)
        x[:10] = rows_of(rng, 10, 5, 6, effect=2.0)
        p.append(inference.p_slower(estimate(summarize(x)), 0.0))
    assert (np.array(p) < 0.001).mean() < 0.0012


def test_clocks_share_nothing():
    rng = np.random.default_rng(9)
    x = np.concatenate([rows_of(rng, 100, 3, 6), rows_of(rng, 100, 3, 6, effect=5.0)])
    apart = estimate(summarize(x), np.repeat(["cuda_events", "gpu_wall"], 100))
    alone = estimate(summarize(x[:100]))
    assert apart.se[:100] == pytest.approx(alone.se)
    assert np.median(apart.se[100:]) > 3 * np.median(apart.se[:100])


def test_the_interval_covers_what_it_says_at_every_look():
    rng = np.random.default_rng(10)
    covered = []
    for _ in range(50):
        got = estimate(summarize(rows_of(rng, 200, 5, 6, effect=0.5, change=0.01)))
        low, high = inference.interval(got, ONE_LOOK)
        covered.append((low < 0.01) & (high > 0.01))
    assert 0.935 < np.mean(covered) < 0.975
    wide = inference.interval(got, 3)
    assert np.all(wide[0] < low)
    assert np.all(wide[1] > high)


def test_the_quantile_is_where_the_tail_says():
    got = estimate(summarize(rows_of(np.random.default_rng(11), 50, 5, 6)))
    for tail in (0.05, 1e-6):
        assert got.tail(got.quantile(tail)) == pytest.approx(np.full(50, tail), rel=1e-6)


def test_same_is_said_where_the_interval_lies_inside_the_floor():
    rng = np.random.default_rng(12)
    got = estimate(summarize(rows_of(rng, 300, 5, 6, change=np.linspace(-0.02, 0.02, 300)[:, None, None])))
    low, high = inference.interval(got, 3)
    said = decide(got, 0.01, 3)
    assert np.array_equal(said.same, (low > -0.01) & (high < 0.01))
    assert 0 < said.same.sum() < 300
    assert not (said.same & (said.slower | said.faster)).any()


def test_a_change_at_the_floor_is_hardly_ever_called_the_same_or_slower():
    rng = np.random.default_rng(13)
    said = [decide(estimate(summarize(rows_of(rng, 200, 5, 6, change=0.01))), 0.01, ONE_LOOK) for _ in range(50)]
    assert np.mean([decision.same for decision in said]) < 0.035  # 2.5 % in truth
    assert np.mean([decision.slower.any() for decision in said]) < 0.1


def test_both_directions_are_found_and_told_apart():
    x = rows_of(np.random.default_rng(14), 200, 5, 6, sd=0.002)
    x[3] += 0.02
    x[5] -= 0.02
    said = decide(estimate(summarize(x)), 0.005, 3)
    assert list(np.nonzero(said.slower)[0]) == [3]
    assert list(np.nonzero(said.faster)[0]) == [5]


def test_the_min_detectable_change_is_found_with_its_power():
    x = rows_of(np.random.default_rng(15), 20 * 200, 8, 6).reshape(20, 200, 8, 6)
    least = inference.min_detectable(estimate(summarize(x)), 0.01)
    p = inference.p_slower(estimate(summarize(x + least[..., None, None])), 0.01)
    assert 0.93 < (p <= 0.005 / 200).mean() < 0.97  # as the only discovery


def test_the_looks_of_the_same_are_paid_for():
    got = estimate(summarize(rows_of(np.random.default_rng(16), 20, 8, 6)))
    low, high = inference.interval(got, 1)
    floor = 1.001 * np.maximum(-low, high)
    assert decide(got, floor, 1).same.all()
    assert not decide(got, floor, 4).same.any()


def test_rows_that_are_faster_buy_no_words_for_others():
    """At the floor a row is called slower as rarely beside 150 that are faster as beside none."""
    rng = np.random.default_rng(21)
    false = 0
    for _ in range(200):
        x = rows_of(rng, 200, 12, 6, change=0.01, sd=0.003)
        x[:150] -= 0.05
        false += bool(decide(estimate(summarize(x)), 0.01, 4).slower[150:].any())
    assert false <= 4


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(np.full((3, 1, 6), 0.05), id="one process"),
        pytest.param(np.full((3, 1, 1), 0.05), id="one visit"),
        pytest.param(np.full((3, 3, 1), 0.05), id="one visit a process"),
        pytest.param(np.full((2, 3, 6), 0.05), id="two rows only, without any scatter"),
        pytest.param(np.full((200, 3, 6), 0.05), id="no scatter anywhere"),
        pytest.param(np.zeros((200, 3, 6)), id="nothing moves"),
        pytest.param(np.zeros((0, 3, 6)), id="no rows"),
    ],
)
def test_too_little_is_no_crash_and_no_certainty(changes):
    got = estimate(summarize(changes))
    low, high = inference.interval(got, 3)
    said = decide(got, 0.01, 3)
    assert np.all(high - low > 1e-4)
    assert np.all(inference.min_detectable(got, 0.01) > 0.01)
    if changes.shape[1] == 1:
        assert np.all(np.isinf(high))
        assert not (said.slower | said.faster | said.same).any()


def test_two_rows_alone_are_judged_on_their_process_means():
    x = rows_of(np.random.default_rng(17), 2, 5, 6)
    got = estimate(summarize(x))
    p = [stats.ttest_1samp(row.mean(-1), 0, alternative="greater").pvalue for row in x]
    assert inference.p_slower(got, 0.0) == pytest.approx(p)


def test_many_reports_at_once_are_judged_as_one_by_one():
    x = rows_of(np.random.default_rng(18), 20, 5, 6).reshape(2, 10, 5, 6)
    together = inference.p_slower(estimate(summarize(x)), 0.0)
    for report, p in zip(x, together, strict=True):
        assert inference.p_slower(estimate(summarize(report)), 0.0) == pytest.approx(p)
