"""The study of tiles on the command line, and how candidates become rows."""

import pytest
import torch

from perf.harness.status import describe, read
from perf.studies.attention.comparing import visit
from perf.studies.attention.results import NOT_MEASURED
from perf.studies.attention.tiles import study
from perf.studies.attention.tiles.kernels import TileCell
from tests.studies.running import invoke, run_study

CELL = TileCell("dq", 1, 2, 32, 16, "float32", True, "backward", "wall", "warm", "DQ_TILES[16] float32", "p")

on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="its defaults are a GPU's here")


@pytest.mark.slow
@on_a_cpu
def test_every_plain_kernel_is_measured_on_a_cpu(tmp_path):
    rows, said = run_study(tmp_path, "tiles", "--rounds", "2", "--processes", "2")
    choices = {"forward-choice", "backward-choice"}
    assert {row["group"] for row in rows} == {"forward", "dkdv", "dq", "at-once", "split"} | choices
    for row in rows:
        if row["group"] in choices and row["status"] == "unavailable":
            continue  # there are no kernels in Gluon here
        assert row["status"] in ("ok", "too_slow"), row
        assert 0 < row["error"] < 1e-5
        assert all(len(samples) == 2 for samples in row["samples_s"])
    present = [row for row in rows if row["is_present"]]
    assert {row["status"] for row in present} == {"ok"}
    assert {row["entry"] for row in present if row["group"] not in choices} == {
        "FORWARD_TILES[16] float32",
        "DKDV_TILES[16] float32",
        "DQ_TILES[16] float32",
        "AT_ONCE_TILES",
        "SPLIT_TILES",
    }
    for entry in {row["entry"] for row in present if row["group"] not in choices} | choices:
        assert sum(line.startswith(f"{entry}: ") for line in said.splitlines()) == 1
    assert "Measured on a CPU" in said


@on_a_cpu
def test_cells_and_candidates_of_one_s_own_and_one_that_cannot_be_launched(tmp_path):
    wanted = ["--kernel", "split", "--cell", "1x1x48", "--mask", "full"]
    candidates = ["--candidate", "16x16x4x1x1", "--candidate", "32x16x4x1x2"]
    rows, said = run_study(tmp_path, "tiles", *wanted, *candidates, "--rounds", "2", "--processes", "2")
    assert [row["impl"] for row in rows] == ["64x64x4x3x1", "16x16x4x1x1", "32x16x4x1x2"]
    assert {(row["batch"], row["num_heads"], row["seq_len"], row["is_causal"]) for row in rows} == {(1, 1, 48, False)}
    assert describe(rows[2]) == "unavailable: a part of 24 keys is no multiple of both tiles"
    assert "unavailable: 1, as 32x16x4x1x2 in 1x1x48x16 float32, full: a part of 24 keys" in said


@on_a_cpu
def test_the_choice_of_kernels_is_held_against_each_of_them_on_drawn_problems(tmp_path):
    rows, said = run_study(tmp_path, "tiles", "--seed", "3", "--count", "2", "--rounds", "2", "--processes", "2")
    assert {row["group"] for row in rows} == {"forward-choice", "backward-choice"}
    assert len({(row["group"], row["seq_len"], row["d"]) for row in rows}) in (2, 4), "one may be in bfloat16"
    assert all(row["status"] == "ok" for row in rows if row["is_present"])
    lines = said.splitlines()
    assert sum(line.startswith(("forward-choice: ", "backward-choice: ")) for line in lines) == 2
    refused = invoke("tiles", "--seed", "3", "--kernel", "dq")
    assert refused.exit_code == 1 and "allowed with it: forward-choice, backward-choice" in refused.output
    refused = invoke("tiles", "--count", "3", "--kernel", "dq")
    assert refused.exit_code == 1 and "--count 3 was given" in refused.output


@pytest.mark.gpu
def test_on_a_gpu_candidates_are_compiled_beforehand_and_what_does_not_fit_is_a_row(tmp_path):
    wanted = ["--kernel", "forward", "--d", "128", "--dtype", "float32", "--cell", "1x2x512"]
    candidates = ["--candidate", "64x32x4x2", "--candidate", "128x128x8x3"]
    found, _ = run_study(tmp_path, "tiles", *wanted, *candidates, "--rounds", "2", "--processes", "2", "--workers", "2")
    rows = {row["impl"]: row for row in found}
    assert describe(rows["128x128x8x3"]).startswith("does not compile: OutOfResources: ")
    assert 0 < rows["64x32x4x2"]["registers"] <= 255
    assert 0 < rows["64x32x4x2"]["error"] < 1e-4


def compiled(monkeypatch, *statuses):
    """The rows p (present), a, b after compilation, and what they are compared with."""
    asked = []

    def compile_all(params, workers):
        asked.extend((one["tiles"], workers) for one in params)
        sizes = {"registers": 8, "spills": 0, "shared_bytes": 1024}
        return [read({"status": status}) | (sizes if status == "ok" else {}) for status in statuses]

    monkeypatch.setattr(study, "compile_all", compile_all)
    rows = study.rows_of(CELL, ("a", "p", "b"))
    ((cell, same),) = study.with_resources({CELL: rows}, 7).items()
    assert same is rows
    assert asked == [("p", 7), ("a", 7), ("b", 7)]
    return cell, rows


def test_a_candidate_that_does_not_compile_is_a_row_and_costs_the_others_nothing(monkeypatch):
    cell, rows = compiled(monkeypatch, "ok", "does not compile: no", "ok")
    assert cell == CELL
    assert [
        (row["impl"], row["role"], describe(row) if row["status"] != NOT_MEASURED else NOT_MEASURED) for row in rows
    ] == [
        ("p", "against", NOT_MEASURED),
        ("a", "ours", "does not compile: no"),
        ("b", "ours", NOT_MEASURED),
    ]
    assert rows[2]["registers"] == 8 and "registers" not in rows[1]

    class Process:
        def take_turns(self, cell, impls, unchecked, rounds):
            return {impl: {"status": "ok", "reason": "", "samples_s": [1.0] * rounds} for impl in impls}

    visit(Process(), cell, rows, 2, 0)
    assert [describe(row) for row in rows] == ["ok", "does not compile: no", "ok"]


def test_where_the_present_choice_does_not_compile_another_one_takes_its_place(monkeypatch):
    cell, rows = compiled(monkeypatch, "does not compile: shared memory", "ok", "ok")
    assert (cell.against, {row["against"] for row in rows}) == ("a", {"a"})
    assert [(row["role"], row["is_present"]) for row in rows] == [("ours", True), ("against", False), ("ours", False)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernel", "split", "--candidate", "64x64x4x3"], "--candidate 64x64x4x3 was given; allowed for split: "),
        (["--cell", "4096"], "--cell 4096 was given; allowed: "),
        (["--dtype", "bfloat16"], "--dtype bfloat16 was given; allowed here: float32"),
        (["--kernel", "hopper-forward"], "none of these run here: hopper-forward"),
        (["--kernel", "forward", "--candidate", "64x64x4x3"], "--candidate 64x64x4x3 is the present choice"),
    ],
)
@on_a_cpu
def test_what_cannot_be_is_one_line_before_anything_is_measured(arguments, words, studies_folder):
    done = invoke("tiles", *arguments)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith(f"Error: {words}")
    assert not list(studies_folder.iterdir())
