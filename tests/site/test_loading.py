"""Results and records as a table: a row for each cell that was measured, with what is known of it."""

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pandas
import pytest

import perf.site
from perf.harness import records
from perf.site import loading
from perf.site.estimate import estimate
from tests.site import synthetic
from tests.site.synthetic import GPU, LEADERBOARD

ROOT = Path(__file__).parents[2]
COMMITS = ("a" * 40, "b" * 40)
FIRST = "machine == 'nvidia-h200' and quantity == 'time' and benchmark == 'attention.FlashAttention'"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two commits of one suite, the second without records; and another suite at the first."""
    folder = tmp_path / "results"
    for number, commit in enumerate(COMMITS):
        synthetic.write_results(folder, GPU, commit, number)
    synthetic.write_results(folder, LEADERBOARD, COMMITS[0], 0)
    known = synthetic.benchmarks(GPU) | synthetic.benchmarks(LEADERBOARD)
    (folder / "benchmarks.json").write_text(json.dumps(known | {"version": 2}))
    synthetic.write_records(tmp_path / "records", GPU, COMMITS[0])
    return folder


def edit(results: Path, change: Any) -> None:
    """Of the first commit's file, by the benchmark's name."""
    (path,) = results.glob(f"*/{COMMITS[0][:8]}-*.json")
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_the_documented_table_is_of_the_newest_commits_and_mixes_no_cells(
    committed_results: pandas.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all commits, dtypes and modes together eager attention looked faster than Triton's."""
    text = (ROOT / "docs" / "gpu-machine.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import perf\.site\n.*?)```", text, re.S)
    *lines, last = code.strip().splitlines()
    names: dict[str, Any] = {}
    monkeypatch.setattr(perf.site, "load", lambda: committed_results)
    exec("\n".join(lines), names)
    table = eval(last, names)
    every = committed_results.query("machine == 'nvidia-h200' and benchmark == 'attention.FlashAttention'")
    for mode, impl in table.columns:
        for seq_len, value in table[mode, impl].dropna().items():
            cell = every.query(
                f"seq_len == {seq_len} and d == 64 and dtype == 'bfloat16' and quantity == 'time' and status == 'ok'"
                f" and mode == '{mode}' and impl == '{impl}'"
            )
            assert value == cell.sort_values("date")["value"].iloc[-1]
    assert (table["forward", "triton"] < table["forward", "reference"]).all()


def test_the_latest_row_of_a_cell_is_that_of_the_newest_commit_with_a_value() -> None:
    common = {"machine": "m", "benchmark": "a.B", "quantity": "time", "started_at": None}
    rows = [
        common | {"n": 1, "date": 1, "value": 1.0, "status": "ok"},
        common | {"n": 1, "date": 2, "value": 2.0, "status": "ok"},
        common | {"n": 1, "date": 3, "value": math.nan, "status": "error"},
        common | {"n": 2, "date": 1, "value": math.nan, "status": "hung"},
        common | {"n": 2, "date": 2, "value": math.nan, "status": "out_of_memory"},
        common | {"n": 1, "date": 1, "value": 9.0, "status": "ok", "quantity": "peak_memory"},
        common | {"n": 1, "date": 1, "value": 5.0, "status": "ok", "machine": "other"},
    ]
    found = perf.site.latest(pandas.DataFrame(rows))
    assert list(zip(found["machine"], found["quantity"], found["n"], found["status"], found["date"], strict=True)) == [
        ("m", "time", 1, "ok", 2),
        ("m", "time", 2, "out_of_memory", 2),
        ("m", "peak_memory", 1, "ok", 1),
        ("other", "time", 1, "ok", 1),
    ]


def test_the_committed_results_are_all_there(committed_results: pandas.DataFrame) -> None:
    listed = json.loads((loading.RESULTS / "benchmarks.json").read_text())
    values = [
        value
        for path in loading.RESULTS.glob("*/*-*.json")
        for name, row in json.loads(path.read_text())["results"].items()
        if name in listed and row[2] == listed[name]["version"]
        for value in row[0] or []
        if value is not None and not math.isnan(value)
    ]
    measured = committed_results.query("status == 'ok'")
    assert len(measured) == len(values)
    assert measured["value"].sum() == pytest.approx(sum(values))
    assert measured["unit"].isin(["seconds", "bytes"]).all()
    assert committed_results.groupby(["machine", "commit"]).ngroups == len(list(loading.RESULTS.glob("*/*-*.json")))
    timed = measured.query("quantity == 'time' and visits.notna()")
    assert len(timed) > 1000
    assert (timed["low"] <= timed["value"] * 1.5).all() and (timed["low"] <= timed["high"]).all()
    assert committed_results["seq_len"].dtype == "Int64"


def test_a_row_has_its_axes_its_interval_and_its_samples(results: Path) -> None:
    frame = loading.load(results)
    (row,) = frame.query(
        f"{FIRST} and commit == '{COMMITS[0]}' and seq_len == 4096 and d == 64 and dtype == 'bfloat16' "
        "and mode == 'forward' and impl == 'triton'"
    ).to_dict("records")
    (case,) = [
        one
        for one in records.read_commit(results.parent / "records", "nvidia-h200", COMMITS[0])
        if list(one.params.values()) == [4096, 64, "bfloat16", "forward", "triton"]
    ]
    known = estimate(case)
    assert known is not None
    assert (row["low"], row["high"]) == (known.low, known.high)
    assert row["samples"] == list(case.samples_s)
    assert (row["visits"], row["unit"], row["status"], row["reason"]) == (3, "seconds", "ok", "")
    assert row["value"] == pytest.approx(statistics.median(row["samples"]), rel=0.2)
    assert f"{row['date']:%Y-%m-%d}" == "2026-01-01"
    (memory,) = frame.query(
        f"benchmark == 'attention.FlashAttention' and quantity == 'peak_memory' and commit == '{COMMITS[0]}' "
        "and seq_len == 4096 and d == 64 and dtype == 'bfloat16' and mode == 'forward' and impl == 'triton'"
    ).to_dict("records")
    assert memory["value"] == memory["low"] == memory["high"] == case.peak_bytes
    assert memory["samples"] is None


def test_a_failure_has_its_reason_and_what_was_not_measured_no_row(results: Path) -> None:
    frame = loading.load(results)
    wrong = frame.query(f"status == 'wrong' and commit == '{COMMITS[0]}'")
    assert set(wrong["reason"]) == {"out: error 0.31 above 0.02 <script>alert(1)</script>"}
    assert wrong["value"].isna().all()
    assert not frame.query(f"commit == '{COMMITS[1]}'")["status"].ne("ok").any(), "nothing says why: n/a or not asked"

    def lose(document: Any) -> None:
        document["results"]["attention.Leaderboard.track_time"][0][0] = None

    edit(results, lose)
    (lost,) = loading.load(results).query("status == 'error'").to_dict("records")
    assert (lost["benchmark"], lost["reason"]) == ("attention.Leaderboard", "no record says why")


def test_without_a_record_of_this_torch_there_is_a_value_alone(results: Path) -> None:
    def upgrade(document: Any) -> None:
        document["params"]["torch"] = "2.12.0"

    assert loading.load(results).query(f"{FIRST} and commit == '{COMMITS[0]}'")["visits"].notna().any()
    edit(results, upgrade)
    first = loading.load(results).query(f"{FIRST} and commit == '{COMMITS[0]}'")
    assert len(first) > 0
    assert first["value"].notna().all()
    assert first["low"].isna().all() and first["samples"].isna().all()


def test_the_build_of_a_torch_is_no_other_torch(results: Path) -> None:
    def build(document: Any) -> None:
        document["params"]["torch"] = "2.11.0+cpu"

    edit(results, build)
    first = loading.load(results).query(f"{FIRST} and commit == '{COMMITS[0]}'")
    assert first["low"].notna().any() and first["visits"].notna().any()


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 9}', '{"version": 2}'])
def test_a_file_that_cannot_be_read_costs_a_warning_and_its_own_rows(results: Path, text: str) -> None:
    before = loading.load(results)
    (results / "nvidia-h200" / "deadbeef-x.json").write_text(text)
    with pytest.warns(UserWarning, match=r"deadbeef-x.json is left out: "):
        after = loading.load(results)
    assert len(after) == len(before)


def test_a_damaged_benchmark_costs_a_warning_and_its_rows_and_a_damaged_file_is_named(results: Path) -> None:
    path = results / "benchmarks.json"
    known = json.loads(path.read_text())
    name = next(one for one in known if one != "version")
    path.write_text(json.dumps(known | {name: known[name] | {"unit": 7}}))
    with pytest.warns(UserWarning, match=r"benchmarks.json: '.*' is left out: unit "):
        loading.load(results)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"benchmarks\.json: "):
        loading.load(results)


def test_a_damaged_record_costs_a_warning_and_its_samples(results: Path) -> None:
    (path,) = results.parent.glob("records/*/*.gz")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"jsonl\.gz cannot be read: "):
        first = loading.load(results).query(f"{FIRST} and commit == '{COMMITS[0]}'")
    assert first["value"].notna().all() and first["samples"].isna().all()
    assert path.stat().st_size == 100  # nothing was mended


def test_what_is_no_results_folder_is_refused_and_an_empty_one_has_no_rows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere was given; allowed: a folder that asv run wrote"):
        loading.load(tmp_path / "nowhere")
    (tmp_path / "benchmarks.json").write_text("{}")
    frame = loading.load(tmp_path)
    assert len(frame) == 0
    assert frame.query("benchmark == 'x'").empty
