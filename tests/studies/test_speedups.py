"""How many processes a study takes, and that the intervals it then shows hold what they say."""

import functools
import itertools
import math

import numpy as np
import pytest

from perf.harness.intervals import of_mean, student
from perf.studies import speedup_figure, speedups
from perf.studies.on_file import NotOnFile
from perf.studies.speedups import FEWEST, Effort, bound_of, processes_for, processes_wanted, speedup_of

HALF_WIDTH = 0.02
SCATTERS = (0.1, 0.3, 0.6, 0.7, 0.8, 1.0, 1.6, 3.0)
"""Of processes, in half-widths asked for."""

STUDIES = 20_000
GRID = np.geomspace(1e-4, 0.5, 1000)


def logs(scatter: float, most: int) -> np.ndarray:
    """Of so many studies the logarithms of the speed-ups of `most` processes each; the speed-up is 1."""
    return np.random.default_rng(0).normal(size=(STUDIES, most)) * scatter * math.log1p(HALF_WIDTH)


@functools.cache
def by_scatter(most: int) -> np.ndarray:
    """`processes_for` pilots of `GRID`'s scatter: of normal ones the number depends on that alone."""
    return np.array([processes_for([-scatter, 0.0, scatter], HALF_WIDTH, most) for scatter in GRID])


def numbers(drawn: np.ndarray, most: int) -> np.ndarray:
    """`processes_for` of each study's pilot."""
    places = np.searchsorted(GRID, drawn[:, :FEWEST].std(axis=1, ddof=1))
    return by_scatter(most)[places.clip(max=len(GRID) - 1)]


def intervals(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`_over_processes` of all studies at once: the logarithms of their speed-ups, and of half their intervals."""
    number = drawn.shape[1]
    cut = number // 5 if number >= 5 else 0
    ordered = np.sort(drawn, axis=1)
    kept = ordered[:, cut : number - cut]
    scatter = ordered.clip(kept[:, :1], kept[:, -1:]).std(axis=1, ddof=1)
    count = kept.shape[1]
    level = 0.95 if number <= FEWEST else speedups.LEVEL_AFTER_PILOT
    point = student((count - 1) * math.sqrt(count / number), level)
    return kept.mean(axis=1), point * scatter * math.sqrt(number) / count


def held(drawn: np.ndarray, wanted: np.ndarray, truth: float = 0.0) -> float:
    """The share of studies whose interval has the truth in it, of the first `wanted` processes."""
    hits = np.zeros(len(drawn), bool)
    for number in np.unique(wanted):
        these = wanted == number
        middles, halves = intervals(drawn[these, :number])
        hits[these] = abs(middles - truth) <= halves
    return float(hits.mean())


@pytest.mark.parametrize("number", [3, 5, 6, 12])
def test_the_simulation_has_the_studies_own_intervals(number):
    drawn = logs(1.0, number)[:5]
    for processes, middle, half in zip(drawn.tolist(), *intervals(drawn), strict=True):
        assert speedups._over_processes(processes) == (pytest.approx(math.exp(middle)), pytest.approx(math.expm1(half)))


@pytest.mark.parametrize("most", [6, 12])
def test_intervals_hold_the_speed_up_as_often_as_they_say_whatever_the_scatter(most):
    for scatter in SCATTERS:
        drawn = logs(scatter, most)
        assert held(drawn, numbers(drawn, most)) >= 0.945, scatter


@pytest.mark.parametrize("scatter", [0.1, 0.8, 3.0])
@pytest.mark.parametrize("bound", [0.9, 0.99, 1.0, 1.01])
def test_bounds_hold_as_often_too(bound, scatter):
    most, truth = 12, math.log(bound)
    of_bound = truth + logs(scatter, most)
    of_speedup = logs(3.0, most)[::-1]
    wanted = numbers(of_speedup, most)
    above = of_bound[:, :FEWEST].mean(axis=1) > 0
    wanted[above] = np.minimum(wanted, numbers(of_bound, most))[above]
    assert held(of_bound, wanted, truth) >= 0.945
    assert held(of_speedup, wanted) >= 0.945


def row(of_processes: list[float], busy: tuple[float, ...] = (), against: str = "b") -> dict:
    return {
        "against": against,
        "ours_s": [[seconds] for seconds in of_processes],
        "against_s": [[1.0]] * len(of_processes),
        "against_busy_s": [[seconds] for seconds in busy],
    }


def wanted(*rows: dict) -> int:
    return processes_wanted(rows, Effort(2, 12, HALF_WIDTH))


def test_the_number_is_fixed_by_the_pilot_and_grows_with_its_scatter():
    calm, some, much = ([math.exp(scatter * deviation) for deviation in (-1, 0, 1)] for scatter in (0.005, 0.01, 0.05))
    assert wanted(row(calm)) == FEWEST
    assert FEWEST < wanted(row(some)) < 12
    assert wanted(row(much)) == 12
    assert processes_for([0.0], HALF_WIDTH, 12) == 12, "one process has no scatter"


def test_that_many_processes_of_the_same_scatter_are_narrow_enough():
    pilot = [-0.011, 0.0, 0.011]
    number = processes_for(pilot, HALF_WIDTH, 40)
    scores = np.array([np.random.default_rng(seed).normal(size=number) for seed in range(500)]) * 0.011
    assert np.expm1(intervals(scores)[1]).mean() <= HALF_WIDTH
    assert number >= (student(2) * 0.011 / math.log1p(HALF_WIDTH)) ** 2, "no less than Stein's"


def test_the_best_of_the_others_counts_and_a_bound_only_above_1():
    noisy = [0.9, 1.0, 1.1]
    far = row([0.1, 0.2, 0.4], against="far")
    assert wanted(row([0.99, 1.0, 1.01]), far) < 12
    assert wanted(row(noisy)) == 12
    assert wanted(row(noisy, (1.18, 1.3, 1.43))) < 12
    assert wanted(row(noisy, (0.85, 0.95, 1.05))) == 12
    bound, half = bound_of(row(noisy, (1.18, 1.3, 1.43)))
    assert bound > 1
    assert half < speedup_of(row(noisy))[1]


def test_a_speed_up_above_1_means_that_ours_is_faster():
    beside = [row([1.0] * 3, (1.5,) * 3, against="slower"), row([1.0] * 3, (0.7,) * 3, against="faster")]
    for measured, seconds in zip(beside, (2.0, 0.8), strict=True):
        measured["against_s"] = [[seconds]] * 3
    slower, faster = beside
    assert speedup_of(slower)[0] == pytest.approx(2.0) and bound_of(slower)[0] == pytest.approx(1.5)
    assert speedup_of(faster)[0] == pytest.approx(0.8) and bound_of(faster)[0] == pytest.approx(0.7)
    assert speedups.best(beside, speedup_of)[0::2] == (pytest.approx(0.8), "faster")
    assert speedups.best(beside, bound_of)[0::2] == (pytest.approx(0.7), "faster")
    assert speedups.geometric_mean(beside)[0] == pytest.approx(1.6**0.5)
    assert speedups.with_interval(*speedup_of(slower)) == "2.000\u00d7 ± 0.0 %"


def test_one_process_far_off_widens_no_interval_from_five_on():
    calm = [0.0, 0.004, -0.004, 0.002]
    assert of_mean([*calm, 0.5]).half > 0.25
    speedup, half = speedups._over_processes([*calm, 0.5])
    assert speedup == pytest.approx(1.0, abs=0.005)
    assert half < 0.06


def test_the_speed_up_is_of_neighbours_so_that_drift_cancels():
    drifting = [1.0, 2.0, 4.0, 8.0, 16.0]
    ours = [[0.9 * seconds for seconds in drifting]] * 3
    speedup, half = speedup_of({"ours_s": ours, "against_s": [drifting] * 3})
    assert (speedup, half) == (pytest.approx(1 / 0.9), pytest.approx(0, abs=1e-12))


def test_samples_on_file_that_are_no_pairs_are_named():
    row = {"against": "torch", "ours_s": [[1.0, 1.0]] * 3, "against_s": [[2.0, 2.0]] * 3, "against_busy_s": [[1.0]] * 2}
    for spoilt, estimate in ((row | {"against_s": [[2.0]] * 3}, speedup_of), (row, bound_of)):
        with pytest.raises(NotOnFile):
            estimate(spoilt)


def test_the_interval_is_students_over_processes_and_infinite_for_one():
    speedup, half = speedup_of(row([0.9, 1.0, 1.1]))
    logs = np.log([0.9, 1.0, 1.1])
    assert speedup == pytest.approx(math.exp(-logs.mean()))
    assert math.log1p(half) == pytest.approx(4.302653 * logs.std(ddof=1) / math.sqrt(3))
    assert speedup_of(row([1.0]))[1] == math.inf


def test_a_geometric_mean_has_the_interval_of_the_processes_that_all_rows_have():
    rows = [row([0.5, 0.5, 0.5, 9.0]), row([2.0, 2.2, 1.8])]
    mean, half = speedups.geometric_mean(rows)
    alone, alone_half = speedup_of(rows[1])
    assert mean == pytest.approx((2 * alone) ** 0.5)
    assert math.log1p(half) == pytest.approx(math.log1p(alone_half) / 2)


@pytest.mark.parametrize("found", [(1.1, 1.2), (0.001, 0.02, 1.0, 30.0)])
def test_a_figure_of_speed_ups_of_any_size_over_arms_of_any_name_has_room_for_its_words(found, drawn, tmp_path):
    name = "my_package.research.kernels.attention.experimental.variants:flash_attention_with_all_that_there_is"
    rows = [
        {"status": "ok", "ours": name, "against": f"{name}_{number}", "ours_s": [[1.0]] * 3, "against_s": [[each]] * 3}
        for number, each in enumerate(found)
    ]
    speedup_figure.draw(rows, lambda row: "tiny", tmp_path / "figure.png", "")
    (figure,) = drawn
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    ticks = [one.get_window_extent() for one in axes.get_xticklabels() if low <= one.get_position()[0] <= high]
    assert len(ticks) >= 2 and all(left.x1 < right.x0 for left, right in itertools.pairwise(ticks))
    for words in (axes.xaxis.label, *figure.legends[0].get_texts()):
        assert 0 <= words.get_window_extent().x0 < words.get_window_extent().x1 <= figure.bbox.x1
