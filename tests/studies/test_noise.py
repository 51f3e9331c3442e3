"""What the study of noise tells apart."""

import itertools
import random

import pandas
import pytest
import torch

from perf.harness.suite import cases_of
from perf.selection import asv_classes
from perf.studies.noise import study


def crossed(visit_sd, allocation_sd, process_sd, difference_sd):
    """Measurements of 1 s with noise of these relative standard deviations."""
    draw = random.Random(0).gauss
    rows = []
    for process in range(40):
        of_process = draw(0, process_sd)
        for allocation in range(study.ALLOCATIONS):
            of_allocation = draw(0, allocation_sd)
            for number in range(study.PASSES):
                a = 1 + of_process + of_allocation + draw(0, visit_sd)
                b = a + draw(0, difference_sd)
                rows.append({"case": "c", "process": process, "allocation": allocation, "pass": number, "a": a, "b": b})
    return pandas.DataFrame(rows)


def test_the_crossed_design_tells_time_place_and_process_apart():
    (row,) = study.crossed_table(crossed(visit_sd=0.02, allocation_sd=0.0, process_sd=0.0, difference_sd=0.002))
    assert float(row["SD of a visit (time)"]) == pytest.approx(2, rel=0.1)
    assert float(row["of an allocation"]) < 0.5
    assert float(row["of A - B"]) == pytest.approx(0.2, rel=0.1)
    (row,) = study.crossed_table(crossed(visit_sd=0.002, allocation_sd=0.02, process_sd=0.05, difference_sd=0.0))
    assert float(row["of an allocation"]) == pytest.approx(2, rel=0.2)
    assert float(row["of process means"]) == pytest.approx(5, rel=0.3)
    assert float(row["of A - B"]) == 0


def test_a_bias_of_a_pair_of_processes_shows_in_its_mean():
    rows = [
        {"case": "c", "process": pair, "pass": number, "a": 1.0 + bias, "b": 1.0}
        for (pair, bias), number in itertools.product(enumerate([0.1, -0.05]), range(4))
    ]
    (row,) = study.in_turn_table(pandas.DataFrame(rows))
    assert [float(mean) for mean in row["mean A - B of each pair"].split()] == pytest.approx([9.76, -4.88], abs=0.01)


def test_the_noise_study_names_cases_that_exist():
    assert [case.key for case in study._cases()] == list(study.CASES)


def small():
    """A control of this machine."""
    controls = "controls.Controls" if torch.cuda.is_available() else "smoke.SmokeControls"
    return next(case for name, cls, _ in asv_classes() if name.startswith(controls) for case in cases_of(cls()))


class Bar:
    def update(self):
        pass


def test_both_designs_run(monkeypatch):
    for name, few in (("ALLOCATIONS", 2), ("PASSES", 2), ("SAMPLES", 2), ("VISITS", 2)):
        monkeypatch.setattr(study, name, few)
    rows = list(study._crossed([small()], 0, Bar()))
    assert sorted((row["allocation"], row["pass"]) for row in rows) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    rows += study._in_turn([small()], Bar())
    assert [row["pass"] for row in rows[4:]] == [0, 1]
    assert all(row["a"] > 0 < row["b"] and row["case"] == small().key for row in rows)
