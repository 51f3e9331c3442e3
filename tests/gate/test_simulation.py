import numpy as np
import pytest
from asv import _stats
from scipy import stats

from perf.gate import proof, sequential, simulation
from perf.gate.evidence import Evidence, Outcome, PairedVisit
from perf.gate.judge import judge
from perf.gate.rate import Rate
from perf.gate.simulation import LOOKS, STRUCTURES, every_row_for_itself, found, identical_code
from perf.harness.case import Case

REPORTS = 100
NOISES = {"noise study": simulation.tuned_on(), "another day": simulation.another_day()}
EXACT = [one for one in STRUCTURES if one.exact]


def holds_its_promise(alarms):
    """At most 1 % of reports; 7 of 100 are too many, whatever the luck (1 in 10 000)."""
    return stats.binomtest(alarms.hits, alarms.of, 0.01, alternative="greater").pvalue > 1e-4


@pytest.fixture(params=NOISES)
def noise(request):
    return NOISES[request.param]


def test_the_recorded_noise_is_all_there():
    study, other = NOISES["noise study"], NOISES["another day"]
    assert (study.changes.shape, other.changes.shape) == ((10, 4, 18), (4, 5, 18))
    assert sorted(study.clocks) == [False] * 9 + [True]
    assert np.all(study.visit_sd < 0.025)
    assert sequential.OneArm.recorded().median_s.shape == (8, 14)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda one: one.name)
def test_identical_code_is_hardly_ever_called_slower_or_faster(noise, structure):
    judged = identical_code(noise, REPORTS, structure)
    assert holds_its_promise(judged.false_alarms)
    assert holds_its_promise(judged.false_gains)


@pytest.mark.parametrize("structure", EXACT, ids=lambda one: one.name)
def test_nor_is_it_without_floors(noise, structure):
    assert holds_its_promise(identical_code(noise, REPORTS, structure, strict=True).false_alarms)


def test_a_naive_rule_breaks_the_promise(noise):
    naive = identical_code(noise, REPORTS, EXACT[0], strict=True, rule=every_row_for_itself)
    assert not holds_its_promise(naive.false_alarms)


@pytest.mark.parametrize("spoiled", ["no correction for rows", "processes ignored"])
def test_leaving_out_a_part_breaks_the_promise(noise, spoiled, monkeypatch):
    if spoiled == "no correction for rows":
        monkeypatch.setattr(stats, "false_discovery_control", lambda p, **_: p)
    else:
        monkeypatch.setattr(simulation.statistics, "UNLIKE_THE_OTHERS", 1e-12)
        monkeypatch.setattr(
            simulation.statistics, "fit_prior", lambda rho, *_: (np.ones(len(rho)), 1e6 * np.ones(len(rho)))
        )
    structure = STRUCTURES[2]
    assert not holds_its_promise(identical_code(noise, REPORTS, structure, strict=True).false_alarms)


def test_most_rows_of_identical_code_are_settled_early(noise):
    judged = identical_code(noise, 50)
    assert judged.same > 0.95
    assert judged.processes < 4


def test_two_percent_is_found_wherever_the_noise_allows_it(noise):
    visible = dict(zip(noise.kinds, simulation.visible(noise), strict=True))
    rates = found(noise, 40 * len(noise.kinds), 0.02).rates
    assert sum(least < 0.016 for least in visible.values()) >= 0.7 * len(visible)
    for kind, rate in rates.items():
        if visible[kind] < 0.016:
            assert stats.binomtest(rate.hits, rate.of, 0.95, alternative="less").pvalue > 1e-4, kind
        if visible[kind] > 0.03:
            assert rate.share < 0.5, kind


def test_a_row_is_looked_at_no_longer_than_it_takes(noise):
    kind = np.arange(40) % len(noise.kinds)
    changes = simulation.draw(noise, 2, np.random.default_rng(0), kind)
    changes[:, 0] += 0.5
    said = simulation.gate(changes, noise.clocks[kind], noise.floors()[kind])
    assert set(np.unique(said.processes)) <= set(LOOKS)
    assert np.all(said.processes[~said.slower & ~said.same] >= LOOKS[-2])
    assert np.all(said.processes[said.slower] == LOOKS[-1])
    assert np.all(said.slower[:, 0])


def test_the_simulated_rule_is_the_judges():
    noise = NOISES["another day"]
    rows, visits = 24, 4
    kind = np.arange(rows) % len(noise.kinds)
    changes = simulation.draw(noise, 1, np.random.default_rng(5), kind, visits)
    changes[0, :6] += np.linspace(0.005, 0.03, 6)[:, None, None]
    said = simulation.gate(changes, noise.clocks[kind], noise.floors()[kind])
    report = []
    for i in range(rows):
        case = Case("a.B", "a", {"row": i}, "cuda", "cuda_events", "cold")
        base_s = float(noise.base_s[kind[i]])
        taken = [
            PairedVisit(process, visit, (base_s,), (base_s * float(np.exp(changes[0, i, process, visit])),))
            for process in range(int(said.processes[0, i]))
            for visit in range(visits)
        ]
        one = Evidence(case, (0.01, 3e-7), False, dict.fromkeys(("base", "head"), Outcome("ok")), taken)
        one.margin = float(simulation.identical.widened(np.expm1(noise.moved[kind[i]])))
        report.append(one)
    words = [one.word for one in judge(report).verdicts]
    assert [word == "SLOWER" for word in words] == list(said.slower[0])
    assert [word == "SAME" for word in words] == list(said.same[0])
    assert {"SLOWER", "SAME"} <= set(words)


def test_asvs_rule_is_asvs_own():
    rng = np.random.default_rng(6)
    base = rng.normal(size=(200, 60))
    head = base[:, ::-1] * 1.0 + rng.uniform(0, 1, size=(200, 1)) + 0.2 * rng.normal(size=(200, 60))
    said = sequential.asv_compare(base, head, factor=np.exp(0.1))
    own = [
        _stats.is_different(np.exp(a), np.exp(b), None, None)
        and np.median(np.exp(b)) > np.median(np.exp(a)) * np.exp(0.1)
        for a, b in zip(base, head, strict=True)
    ]
    assert np.mean(said == own) > 0.98  # medians of logs and of seconds part ways between two samples
    assert 0.2 < said.mean() < 0.9


def test_the_t_test_is_scipys():
    rng = np.random.default_rng(7)
    base, head = rng.normal(size=(200, 60)), rng.normal(0.3, 1, size=(200, 60))
    p = stats.ttest_ind(head, base, axis=-1, alternative="greater").pvalue
    assert np.array_equal(sequential.t_test(base, head), p < 0.025)


@pytest.mark.parametrize("rule", [sequential.asv_compare, sequential.t_test])
def test_who_compares_two_processes_raises_false_alarms(rule):
    alarms = sequential.one_after_another(sequential.OneArm.recorded(), 50, rule)
    assert not holds_its_promise(alarms)
    assert alarms.share > 0.9


def test_asvs_factor_misses_five_percent():
    rates = sequential.found_one_after_another(sequential.OneArm.recorded(), 100, 0.05, sequential.asv_compare)
    assert sum(rate.share > 0.5 for rate in rates.values()) == 0


def test_the_bounds_of_a_rate_are_clopper_and_pearsons():
    assert Rate(0, 300).upper == pytest.approx(1 - 0.05 ** (1 / 300))
    assert Rate(300, 300).lower == pytest.approx(0.05 ** (1 / 300))


def test_the_tables_are_complete():
    tables = proof.tables(reports=10, visits=3)
    identical, slowed, costs, others, on_file = tables
    noises = {row["noise"] for row in identical[1]}
    assert noises == {"noise study", "another day", "all on file"}
    assert len(identical[1]) == len(noises) * (len(STRUCTURES) + 1)
    assert len(slowed[1]) > 14
    assert {"0.5 %", "1 %", "2 %", "5 %", "visible from"} <= set(slowed[1][0])
    assert len(costs[1]) == len(noises) * len(proof.SLOW_DOWNS)
    assert len(others[1]) == 8
    assert len(on_file[1]) >= 3
    assert all(isinstance(text, str) for _, rows in tables for row in rows for text in row.values())
