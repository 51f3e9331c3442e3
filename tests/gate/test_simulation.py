import numpy as np
import pytest
from asv import _stats
from scipy import stats

from perf.gate import aa_runs, other_tools, prior, recorded_noise, simulated_rates, simulation
from perf.gate.disturbances import STRUCTURES
from perf.gate.evidence import Evidence, Outcome, PairedVisit
from perf.gate.judge import judge
from perf.gate.rate import Rate
from perf.gate.simulation import LOOKS, detection, identical_code, t_test_per_row
from perf.harness.case import Case

REPORTS = 60
STUDY, ANOTHER_DAY = recorded_noise.noise_study(), recorded_noise.another_day()
EXACT = [structure for structure in STRUCTURES if structure.exact]


def holds_its_promise(alarms):
    """At most 1 % of reports: 6 of 60 have a probability of less than 1 in 10 000."""
    return stats.binomtest(alarms.hits, alarms.of, 0.01, alternative="greater").pvalue > 1e-4


def test_the_recorded_noise_is_all_there():
    assert (STUDY.changes.shape, ANOTHER_DAY.changes.shape) == ((10, 4, 18), (4, 5, 18))
    assert sorted(STUDY.clocks) == [False] * 9 + [True]
    assert np.all(STUDY.visit_sd < 0.025)
    assert other_tools.OneArm.recorded().median_s.shape == (8, 14)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
def test_identical_code_is_hardly_ever_called_slower_or_faster(structure):
    judged = identical_code(STUDY, REPORTS, structure)
    assert holds_its_promise(judged.slower)
    assert holds_its_promise(judged.faster)


@pytest.mark.parametrize("structure", EXACT, ids=lambda structure: structure.name)
def test_nor_is_it_without_floors_and_on_another_day(structure):
    assert holds_its_promise(identical_code(ANOTHER_DAY, REPORTS, structure, strict=True).slower)


def test_a_naive_rule_breaks_the_promise():
    naive = identical_code(STUDY, REPORTS, EXACT[0], strict=True, rule=t_test_per_row)
    assert not holds_its_promise(naive.slower)


@pytest.mark.parametrize("spoiled", ["no correction for rows", "processes ignored"])
def test_leaving_out_a_part_breaks_the_promise(spoiled, monkeypatch):
    if spoiled == "no correction for rows":
        monkeypatch.setattr(stats, "false_discovery_control", lambda p, **_: p)
    else:
        monkeypatch.setattr(prior, "OUTLIER_PRIOR", 1e-12)
        monkeypatch.setattr(prior, "fit_prior", lambda rho, *_: (np.ones(len(rho)), 1e6 * np.ones(len(rho))))
    assert not holds_its_promise(identical_code(ANOTHER_DAY, REPORTS, STRUCTURES[2], strict=True).slower)


def test_most_rows_of_identical_code_are_settled_early():
    judged = identical_code(STUDY, 50)
    assert judged.same > 0.95
    assert judged.processes < 4


def test_two_percent_is_found_wherever_the_noise_allows_it():
    detectable = dict(zip(STUDY.kinds, simulation.min_detectable(STUDY), strict=True))
    rates = detection(STUDY, 30 * len(STUDY.kinds), 0.02).rates
    assert sum(share < 0.016 for share in detectable.values()) >= 0.7 * len(detectable)
    for kind, rate in rates.items():
        if detectable[kind] < 0.016:
            assert stats.binomtest(rate.hits, rate.of, 0.95, alternative="less").pvalue > 1e-4, kind
        if detectable[kind] > 0.03:
            assert rate.share < 0.5, kind


def test_a_row_is_looked_at_no_longer_than_it_takes():
    kind = np.arange(40) % len(STUDY.kinds)
    changes = simulation.draw(STUDY, 2, np.random.default_rng(0), kind)
    changes[:, 0] += 0.5
    words = simulation.gate(changes, STUDY.clocks[kind], STUDY.floors()[kind])
    assert set(np.unique(words.processes)) <= set(LOOKS)
    assert np.all(words.processes[~words.slower & ~words.same] >= LOOKS[-2])
    assert np.all(words.processes[words.slower] == LOOKS[-1])
    assert np.all(words.slower[:, 0])


def test_the_simulated_rule_is_the_judges():
    noise = ANOTHER_DAY
    rows, visits = 24, 4
    kind = np.arange(rows) % len(noise.kinds)
    changes = simulation.draw(noise, 1, np.random.default_rng(5), kind, visits)
    changes[0, :6] += np.linspace(0.005, 0.03, 6)[:, None, None]
    simulated = simulation.gate(changes, noise.clocks[kind], noise.floors()[kind])
    report = []
    for i in range(rows):
        case = Case("a.B", "a", {"row": i}, "cuda", "cuda_events", "cold")
        base_s = float(noise.base_s[kind[i]])
        taken = [
            PairedVisit(process, visit, (base_s,), (base_s * float(np.exp(changes[0, i, process, visit])),))
            for process in range(int(simulated.processes[0, i]))
            for visit in range(visits)
        ]
        one = Evidence(case, (0.01, 3e-7), False, dict.fromkeys(("base", "head"), Outcome("ok")), taken)
        one.margin = float(aa_runs.margin(np.expm1(noise.moved[kind[i]])))
        report.append(one)
    words = [one.word for one in judge(report).verdicts]
    assert [word == "SLOWER" for word in words] == list(simulated.slower[0])
    assert [word == "SAME" for word in words] == list(simulated.same[0])
    assert {"SLOWER", "SAME"} <= set(words)


def test_asvs_rule_is_asvs_own():
    rng = np.random.default_rng(6)
    base = rng.normal(size=(200, 60))
    head = base[:, ::-1] * 1.0 + rng.uniform(0, 1, size=(200, 1)) + 0.2 * rng.normal(size=(200, 60))
    said = other_tools.asv_compare(base, head, factor=np.exp(0.1))
    own = [
        _stats.is_different(np.exp(a), np.exp(b), None, None)
        and np.median(np.exp(b)) > np.median(np.exp(a)) * np.exp(0.1)
        for a, b in zip(base, head, strict=True)
    ]
    assert np.mean(said == own) > 0.98  # medians of logs and of seconds part ways between two samples
    assert 0.2 < said.mean() < 0.9


@pytest.mark.parametrize("rule", [other_tools.asv_compare, other_tools.t_test])
def test_who_compares_two_processes_raises_false_alarms(rule):
    alarms = other_tools.one_after_another(other_tools.OneArm.recorded(), 50, rule)
    assert not holds_its_promise(alarms)
    assert alarms.share > 0.9


def test_asvs_factor_misses_five_percent():
    rates = other_tools.detected_one_after_another(other_tools.OneArm.recorded(), 100, 0.05, other_tools.asv_compare)
    assert sum(rate.share > 0.5 for rate in rates.values()) == 0


def test_the_bounds_of_a_rate_are_clopper_and_pearsons():
    assert Rate(0, 300).upper == pytest.approx(1 - 0.05 ** (1 / 300))
    assert Rate(300, 300).lower == pytest.approx(0.05 ** (1 / 300))


def test_the_tables_are_complete(monkeypatch):
    monkeypatch.setattr(simulation, "CHUNK", 5)
    steps = []
    drawn_from = simulated_rates.recorded()
    tables = simulated_rates.tables(drawn_from, lambda count, text: steps.append(count), reports=1, visits=3)
    identical, slowed, costs, others, on_file = tables
    noises = {row["noise"] for row in identical[1]}
    assert noises == {"noise study", "another day", "all on file"}
    assert len(identical[1]) == len(noises) * (len(STRUCTURES) + 1)
    assert len(slowed[1]) > 14
    assert {"0.5 %", "1 %", "2 %", "5 %"} <= set(slowed[1][0])
    assert len(costs[1]) == len(noises) * len(simulated_rates.SLOW_DOWNS)
    assert len(others[1]) == 8
    assert len(on_file[1]) >= 3
    assert all(isinstance(text, str) for _, rows in tables for row in rows for text in row.values())
    total = len(identical[1]) + len(costs[1]) + len(others[1])
    assert steps == [1] * total and simulated_rates.lines(drawn_from) == total, "the bar of `perf simulate`"
