"""The compile study times what compiles, and says of what does not why."""

import json

import torch

from perf.harness.status import describe
from perf.studies import compile as study
from perf.studies.lm import Setting
from tests.studies.running import invoke

TINY = ["--size", "tiny", "--context", "16", "--batch", "2", "--seq-len", "32", "--d", "16"]


def test_eager_is_measured_in_both_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # no machine of the tests needs a compiler
    done = invoke("compile", *TINY, "--variant", "eager", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    attention, model = (json.loads((tmp_path / f"compile-{part}.json").read_text()) for part in study.PARTS)
    assert [(row["variant"], row["status"]) for row in attention["rows"]] == [("eager", "ok"), ("compiled", "ok")]
    assert [(row["variant"], row["status"]) for row in model["rows"]] == [("eager", "ok")]
    assert all(row["forward_s"] > 0 for row in attention["rows"] + model["rows"])
    assert attention["command"].endswith(" --part attention") and model["command"].endswith(" --part model")
    # A figure is of what compiling gains, which an eager form alone does not have.
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["compile-attention.png"]


def test_a_part_that_measures_nothing_keeps_what_is_on_file(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "measure_model", lambda *of: 1 / 0)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    (tmp_path / "compile-model.json").write_text("earlier")
    done = invoke("compile", *TINY, "--variant", "eager", "--out", str(tmp_path))
    assert done.exit_code == 0 and "division by zero" in done.output
    assert (tmp_path / "compile-model.json").read_text() == "earlier"
    assert (tmp_path / "compile-attention.json").exists()


def test_what_does_not_compile_is_a_row_with_its_reason():
    class Broken:
        graphed = False

        def forward(self):
            raise RuntimeError("no compiler found\nand a long trace")

        step = forward

    measured = study.measure_model(Broken(), Setting("tiny", 16, 2, "fp32", "compiled", "reference"))
    assert describe(measured) == "error: RuntimeError: no compiler found"


def bars_of(figure):
    """Gains by label, of each panel."""
    return {
        axes.get_title(): {
            label.get_text(): bar.get_width() for label, bar in zip(axes.get_yticklabels(), axes.patches, strict=True)
        }
        for axes in figure.axes
    }


def test_the_figure_of_attention_has_the_gain_of_each_shape_in_both_directions(tmp_path, drawn):
    rows = [
        {"part": "attention", "seq_len": n, "d": d, "variant": variant, "status": "ok", "forward_s": s, "backward_s": s}
        for n in (256, 1024)
        for d in (16, 32)
        for variant, s in {"eager": 6.0, "compiled": 6.0 / d}.items()
    ]
    study.draw_attention(rows, tmp_path / "figure.png", "")
    lines = {
        axes.get_title(): {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()[:-1]}
        for axes in drawn[0].axes
    }
    gains = {"d = 16": [[256, 16], [1024, 16]], "d = 32": [[256, 32], [1024, 32]]}
    assert lines == {"forward": gains, "backward": gains}


def test_the_figure_of_models_has_a_bar_for_each_variant_where_it_was_measured(tmp_path, drawn):
    gains = {"eager": 1.0, "cuda_graph": 1.25, "compiled": 1.5}
    rows = [
        Setting(size, 512, 4, "fp32", variant, "reference").axes()
        | {"part": "model", "status": "ok", "step_s": 3 / gain}
        for size in ("small", "large")
        for variant, gain in gains.items()
    ]
    for row in rows:
        if row["variant"] != "cuda_graph":
            row["forward_s"] = row["step_s"]
    rows[-1] = {key: value for key, value in rows[-1].items() if not key.endswith("_s")} | {"status": "out_of_memory"}
    study.draw_model(rows, tmp_path / "figure.png", "")
    assert bars_of(drawn[0]) == {
        "forward": {"small compiled": 1.5},
        "step": {"small cuda_graph": 1.25, "small compiled": 1.5, "large cuda_graph": 1.25},
    }


def test_a_gain_is_over_the_eager_row_of_the_same_cell():
    row = {"part": "attention", "seq_len": 8, "d": 4, "status": "ok", "forward_first_s": 1.0}
    eager, fast = row | {"variant": "eager", "forward_s": 2.0}, row | {"variant": "compiled", "forward_s": 0.5}
    alone = fast | {"d": 8}
    assert [cells["forward gain"] for cells in study.shown([eager, fast, alone])] == ["1.00", "4.00", "-"]
