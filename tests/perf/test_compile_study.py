"""The compile study times what compiles, and says of what does not why."""

import json
import warnings

import torch
from click.testing import CliRunner

from perf.__main__ import main
from perf.studies import compile as study

TINY = ["--size", "tiny", "--context", "16", "--batch", "2", "--seq-len", "32", "--d", "16"]


def test_eager_is_measured_in_both_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # no machine of the tests needs a compiler
    done = CliRunner().invoke(main, ["study", "compile", *TINY, "--variant", "eager", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "compile.json").read_text())["rows"]
    assert [(row["part"], row["variant"], row["status"]) for row in rows] == [
        ("attention", "eager", "ok"),
        ("attention", "compiled", "ok"),
        ("model", "eager", "ok"),
    ]
    assert all(row["forward_s"] > 0 for row in rows)


def test_what_does_not_compile_is_a_row_with_its_reason():
    class Broken:
        def forward(self):
            raise RuntimeError("no compiler found\nand a long trace")

        step = forward

    from perf.studies.lm import Setting

    found = study.measure_model(Broken(), Setting("tiny", 16, 2, "fp32", "compiled", "reference"))
    assert found["status"] == "RuntimeError: no compiler found"


def test_a_gain_is_over_the_eager_row_of_the_same_cell():
    row = {"part": "attention", "seq_len": 8, "d": 4, "status": "ok", "forward_first_s": 1.0}
    eager, fast = row | {"variant": "eager", "forward_s": 2.0}, row | {"variant": "compiled", "forward_s": 0.5}
    alone = fast | {"d": 8}
    lines = study.table([eager, fast, alone]).splitlines()[2:]
    assert "1.00" in lines[0]
    assert "4.00" in lines[1]
    assert " - " in lines[2]


def test_inductors_advice_to_use_tf32_fails_no_test_that_compiles():
    """Given at the first compilation of a process, and raised inside it where warnings are errors."""
    warnings.warn(
        "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. "
        "Consider setting `torch.set_float32_matmul_precision('high')` for better performance.",
        stacklevel=2,
    )
