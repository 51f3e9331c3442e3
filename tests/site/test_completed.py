"""What a killed run left in the records alone is published with asv's results."""

import json
from pathlib import Path
from typing import Any

import pytest
from asv.commands import publish
from asv.plugins import regressions
from asv.results import Results

from perf.asv_plugins import completed
from perf.harness import HARNESS_VERSION
from perf.harness.records import read_commit
from tests.site import synthetic

COMMIT = "a" * 40
STORED, KILLED = synthetic.GPU, synthetic.SHORT
TIME = f"{KILLED.benchmark}.track_time"


def measure(folder: Path, harness: str = HARNESS_VERSION, visits: int = 4) -> dict[str, Any]:
    """Results of one class, records of two; returns benchmarks.json."""
    synthetic.write_results(folder / "results", STORED, COMMIT, 0)
    for suite in (STORED, KILLED):
        synthetic.write_records(folder / "records", suite, COMMIT, visits, harness=harness)
    known = synthetic.benchmarks(STORED) | synthetic.benchmarks(KILLED)
    (folder / "results" / "benchmarks.json").write_text(json.dumps(known | {"version": 2}))
    return known


def load_results(folder: Path) -> Any:
    (path,) = (folder / "results" / synthetic.H200).glob("*-*.json")
    return Results.load(str(path))


def test_cases_that_only_the_records_have_are_published(tmp_path: Path) -> None:
    known = measure(tmp_path)
    before = load_results(tmp_path)
    assert TIME not in before.get_all_result_keys()
    completed.install()
    for module in (publish, regressions):
        (results,) = module.iter_results(str(tmp_path / "results"))
        values = results.get_result_value(TIME, known[TIME]["params"])
        recorded = [one for one in read_commit(tmp_path / "records", synthetic.H200, COMMIT) if one.benchmark in TIME]
        assert values == [pytest.approx(sorted(one.samples_s)[len(one.samples_s) // 2], rel=1e-2) for one in recorded]
        assert all(results.get_result_stats(TIME, known[TIME]["params"])), "with weights"
        for stored in synthetic.benchmarks(STORED):
            axes = known[stored]["params"]
            assert results.get_result_value(stored, axes) == pytest.approx(
                before.get_result_value(stored, axes), nan_ok=True
            )
    assert TIME not in load_results(tmp_path).get_all_result_keys(), "the file stays"


@pytest.mark.parametrize("fault", [{"harness": "1"}, {"visits": 3}], ids=["an older harness", "an unfinished run"])
def test_records_that_asv_may_have_dropped_with_reason_are_not_published(fault: Any, tmp_path: Path) -> None:
    known = measure(tmp_path, **fault)
    assert completed.complete(load_results(tmp_path), known, tmp_path / "records", HARNESS_VERSION) == 0


def test_a_benchmark_of_another_version_keeps_its_values(tmp_path: Path) -> None:
    known = measure(tmp_path)
    changed = {name: one | {"version": "2"} for name, one in known.items() if name != TIME}
    assert completed.complete(load_results(tmp_path), changed, tmp_path / "records", HARNESS_VERSION) == 0
