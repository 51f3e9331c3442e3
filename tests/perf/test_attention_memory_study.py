"""Eager attention's memory follows a closed form, to the byte."""

import json
from pathlib import Path

from click.testing import CliRunner

from perf.__main__ import main
from perf.harness import records
from perf.studies.attention_memory import answers, first_that_fails, predicted, table

RECORDS = Path(__file__).resolve().parents[2] / "perf" / "records"
MODES = {"saved": "before_backward", "forward": "forward", "backward": "backward"}


def test_the_prediction_is_what_was_measured_on_the_committed_machine():
    """All 20 shapes of the course in three modes, at every commit that has them."""
    compared = 0
    for machine in records.machines(RECORDS):
        for commit in records.commits(RECORDS, machine):
            for one in records.read_commit(RECORDS, machine, commit):
                axes = one.params
                if not one.benchmark.startswith("attention.PyTorchAttention") or axes["impl"] != "reference":
                    continue
                name = next(name for name, mode in MODES.items() if mode == axes["mode"])
                assert one.peak_bytes == predicted(axes["batch"], axes["seq_len"], axes["d"])[name], axes
                compared += 1
    assert compared >= 60


def test_lengths_that_fail_first_are_the_courses():
    assert first_that_fails(8, 64, 24e9) == 16384
    assert first_that_fails(8, 64, 80e9) == 32768
    assert first_that_fails(8, 64, 1e15) > 2**20


def test_without_a_gpu_the_command_predicts_all_twenty_shapes_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = CliRunner().invoke(main, ["study", "attention-memory", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "There is no GPU here" in done.output
    assert len(json.loads((tmp_path / "attention-memory.json").read_text())["rows"]) == 20
    assert (tmp_path / "attention-memory.png").stat().st_size > 0


def test_the_first_real_out_of_memory_is_a_row_and_a_sentence():
    row = {"seq_len": 65536, "d": 64, "predicted": predicted(8, 65536, 64), "measured": {}}
    row["status"] = "out of memory: asked for 128.00 GiB"
    assert "asked for 128.00 GiB" in table([row])
    assert any("seq_len 65536, d 64 is the first to fail here" in sentence for sentence in answers([row], 8))
