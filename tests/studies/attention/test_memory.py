"""Eager attention's memory follows a closed form, to the byte."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perf.harness import records
from perf.studies.attention import memory
from perf.studies.attention.memory import answers, first_that_fails, predicted, shown
from tests.studies.running import run_study

RECORDS = Path(__file__).resolve().parents[3] / "perf" / "records"
MODES = {"saved": "before_backward", "forward": "forward", "backward": "backward"}


@pytest.fixture(autouse=True)
def _allocator_as_it_was(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")  # so that it is put back
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")


def test_the_prediction_is_what_was_measured_on_the_committed_machine():
    """All 20 shapes of the course in three modes, at every commit that has them."""
    compared = 0
    for machine in records.machines(RECORDS):
        for commit in records.commits(RECORDS, machine):
            for result in records.read_commit(RECORDS, machine, commit):
                axes = result.params
                if not result.benchmark.startswith("attention.PyTorchAttention") or axes["impl"] != "reference":
                    continue
                name = next(name for name, mode in MODES.items() if mode == axes["mode"])
                assert result.peak_bytes == predicted(axes["batch"], axes["seq_len"], axes["d"])[name], axes
                compared += 1
    assert compared >= 60


def test_lengths_that_fail_first_are_the_courses():
    assert first_that_fails(8, 64, 24e9) == 16384
    assert first_that_fails(8, 64, 80e9) == 32768
    assert first_that_fails(8, 64, 1e15) > 2**20


def full(seq_len, d):
    row = {"seq_len": seq_len, "d": d, "predicted": predicted(8, seq_len, d), "measured": {}}
    return row | {"status": "out_of_memory", "reason": f"asked for {32 * seq_len**2 // 2**30}.00 GiB"}


def fitting(seq_len, d):
    row = {"seq_len": seq_len, "d": d, "predicted": predicted(8, seq_len, d)}
    return row | {"measured": row["predicted"], "status": "ok"}


def failures(rows):
    return [sentence for sentence in answers(rows, 8) if "first to fail here" in sentence]


def test_the_first_real_out_of_memory_is_a_row_and_one_sentence_for_every_d():
    rows = [full(65536, d) for d in (16, 64)]
    assert "asked for 128.00 GiB" in next(shown(rows))["status"]
    expected = "seq_len 65536, {}: the first to fail here (out of memory: asked for 128.00 GiB)."
    assert failures(rows) == [expected.format("every d")]
    assert failures(rows[:1]) == [expected.format("d 16")]
    assert failures([full(131072, 16), *rows]) == [expected.format("every d")]  # the first, not a longer one
    longer = [fitting(65536, 16), full(131072, 16), full(65536, 64)]
    starts = [sentence.partition(":")[0] for sentence in failures(longer)]
    assert starts == ["seq_len 65536, d 64", "seq_len 131072, d 16"]


@pytest.mark.parametrize("crosses", [0, 2])
def test_what_did_not_fit_is_crossed_in_the_figure(tmp_path, drawn, crosses):
    rows = [fitting(256, 16), fitting(256, 64), *[full(65536, d) for d in (16, 64)][:crosses]]
    memory.draw(rows, 8, tmp_path / "figure.png")
    axes = drawn[0].axes[0]
    black = [collection for collection in axes.collections if collection.get_facecolor().tolist() == [[0, 0, 0, 1]]]
    assert sum(len(collection.get_offsets()) for collection in black) == crosses
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert any(label.startswith("out of memory") for label in labels) == bool(crosses)


def test_the_allocator_is_chosen_before_torch_is_there_to_read_it():
    code = "import sys, perf.studies.attention.memory; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=RECORDS.parents[1]
    )
    assert done.stdout == "False\n"


@pytest.mark.gpu
def test_the_first_row_is_the_prediction_and_leaves_nothing_behind():
    memory.workspaces()
    gc.collect()
    before = torch.cuda.memory_allocated()
    assert memory.measured_bytes(8, 256, 16) == {"measured": predicted(8, 256, 16), "status": "ok", "reason": ""}
    assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU measures")
def test_without_a_gpu_the_command_predicts_all_twenty_shapes(tmp_path):
    rows, _ = run_study(tmp_path, "attention-memory")
    assert len(rows) == 20 and {row["status"] for row in rows} == {"not_measured"}
    assert (tmp_path / "attention-memory.png").stat().st_size > 0
