"""The studies of the language model run on a laptop, on any model, and survive what does not fit."""

import dataclasses
import itertools
import os

import pytest
import torch
from torch import nn

from cs336_systems import training
from perf.harness import ceilings
from perf.harness.status import describe
from perf.options import Terminated
from perf.studies import compile as compile_study
from perf.studies import end_to_end, lm, warm_up
from perf.studies.device import ON_A_CPU, bench
from perf.studies.kernels import study as kernels_study
from perf.studies.lm import Setting
from perf.workloads import imported, peer_step
from perf.workloads.transformer_oracle import ExactStep
from perf.workloads.workload import WrongResult
from tests.studies.running import invoke, run_study

TINY = ["--size", "tiny", "--context", "16", "--batch", "2"]


def timed(size, context, precision="fp32"):
    setting = Setting(size, context, 4, precision, "eager", "reference")
    return setting.axes() | {"status": "ok"} | {f"{phase}_s": [1e-3, 2e-3, 3e-3] for phase in end_to_end.PHASES}


FULL = timed("2.7B", 1024) | {"status": "out_of_memory", "reason": "requested 2.00 GiB"}


@pytest.mark.parametrize(
    "rows",
    [
        [timed("small", 512)],
        [FULL, timed("small", 512)],
        [timed(*axes) for axes in itertools.product(lm.SIZES_2025, (128, 256, 512, 1024), ("fp32", "bf16"))],
        [timed("small", 2**index, precision) for index in range(10) for precision in lm.PRECISIONS[:4]],
    ],
    ids=len,
)
def test_the_figure_of_end_to_end_has_a_panel_a_size_and_a_bar_a_row_and_fits_a_page(tmp_path, drawn, rows):
    end_to_end.draw(rows, tmp_path / "figure.png", "")
    (figure,) = drawn
    assert figure.get_size_inches()[0] * 110 <= 1100
    panels = {axes.get_title(): axes for axes in figure.axes if axes.axison}
    assert list(panels) == list(dict.fromkeys(row["size"] for row in rows))
    for size, axes in panels.items():
        mine = [row for row in rows if row["size"] == size]
        assert sum(bar.get_width() > 0 for bar in axes.patches) == 3 * sum(row["status"] == "ok" for row in mine)
        assert [text.get_text() for text in axes.texts] == ["out of memory" for row in mine if row["status"] != "ok"]
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert len(set(labels)) == len(mine) == len(labels)
        assert all(label.startswith(str(row["context"])) for label, row in zip(labels, mine, strict=True))
        inches = axes.get_window_extent().height / figure.dpi / len(mine)
        assert inches > 0.15  # a bar, and its label beside the next


def test_out_of_memory_is_a_row_with_what_was_asked_for_and_the_sweep_goes_on():
    settings = [Setting("tiny", context, 2, "fp32", "eager", "reference") for context in (8, 16, 24)]

    def measure(train, setting):
        if setting.context_length == 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ...")
        return {"loss": float(train.train.step())}

    rows = list(lm.rows_of(settings, measure))
    assert [describe(row) for row in rows] == ["ok", "out of memory: requested 2.00 GiB", "ok"]


class Odd(BaseException):
    """As a user's own code may raise."""


def rows_after(error):
    """The rows of two contexts, at the first of which `error` is raised."""

    def measure(train, setting):
        if setting.context_length == 8:
            raise error
        return {"loss": 1.0}

    return list(lm.rows_of([Setting("tiny", context, 2, "fp32", "eager", "reference") for context in (8, 16)], measure))


@pytest.mark.parametrize("error", [ValueError("q is on cpu"), SystemExit("q is on cpu"), Odd("q is on cpu")])
def test_a_failure_of_any_kind_costs_its_own_row_alone(error):
    assert [describe(row) for row in rows_after(error)] == [f"error: {type(error).__name__}: q is on cpu", "ok"]


def nothing(*_):
    """A user's function that forgets to return."""


def test_what_a_user_s_function_returns_instead_of_a_model_or_a_step_is_named():
    own = f"{__name__}:nothing"
    (row,) = lm.rows_of([Setting("tiny", 8, 2, "fp32", "eager", "reference", own)], lambda *_: {})
    assert row["status"] == "wrong" and f"{own} returned NoneType" in row["reason"]
    with pytest.raises(WrongResult, match=f"{own} returned NoneType"):
        peer_step.build(own, {"size": "tiny", "context_length": 8, "batch": 2}, "cpu", ExactStep(1.0, 1.0), [])


@pytest.mark.parametrize("ending", [KeyboardInterrupt, Terminated])
def test_what_ends_the_study_is_no_failure_of_its_code(ending):
    with pytest.raises(ending):
        rows_after(ending())


def test_a_signal_while_a_user_s_module_is_imported_is_no_failure_of_that(tmp_path, monkeypatch):
    (tmp_path / "slow_peers.py").write_text("from perf.options import Terminated\nraise Terminated(143)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Terminated):
        imported("slow_peers:step")


def test_a_process_that_dies_costs_warm_up_its_own_size_alone(monkeypatch):
    monkeypatch.setattr(warm_up, "first_steps", died)
    (row,) = warm_up.alone(Setting("tiny", 8, 2, "fp32", "eager", "reference"), 3)
    assert (row["size"], row["status"]) == ("tiny", "crashed")


def died(setting, count):
    os._exit(1)


class BasicsTransformerLM(nn.Module):
    """As the course's own: another layout of modules, and an attention that takes a mask."""

    attend = None

    def __init__(self, vocab_size, context_length, d_model, num_layers):
        super().__init__()
        self.token_embeddings = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(num_layers))
        self.lm_head = nn.Linear(d_model, vocab_size)
        self.mask = torch.ones(context_length, context_length, dtype=torch.bool).tril()

    def forward(self, ids):
        x = self.token_embeddings(ids)
        for layer in self.layers:
            heads = layer(x).unflatten(-1, (4, -1)).transpose(1, 2)
            x = x + type(self).attend(heads, heads, heads, self.mask).transpose(1, 2).flatten(-2)
        return self.lm_head(x)


CALLS = []


def build(config, context_length, attention):
    """The hook: a model of the user's own, with its attention swapped for the one that the study asks for."""

    def attend(q, k, v, mask):
        CALLS.append(q.shape)
        return attention(q, k, v)

    BasicsTransformerLM.attend = staticmethod(attend)
    return BasicsTransformerLM(config.vocab_size, context_length, config.d_model, config.num_layers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "huge"], "Invalid value for '--size': 'huge' is not one of"),
        (["--context", "0"], "Invalid value for '--context'"),
        (["--variant", "cuda_graph"], "Invalid value for '--variant': 'cuda_graph' is not one of"),
        (["--model", "nowhere:build"], "Error: --model 'nowhere:build' was given; allowed: module:function"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    done = invoke("end-to-end", *TINY, *arguments)
    assert done.exit_code != 0
    assert message in done.output
    assert "Traceback" not in done.output


def test_what_the_closed_forms_do_not_model_has_no_prediction():
    setting = Setting("tiny", 16, 1, "bf16_weights", "eager", "reference")
    assert lm.predicted_bytes(setting) is None
    assert lm.predicted_bytes(dataclasses.replace(setting, precision="bf16")) > 0


def test_what_is_not_asked_for_is_the_studys_own_default(monkeypatch):
    models = lm.Models({"precision": ("bf16",)}, on_a_gpu=lm.ON_A_GPU | {"context": (128, 256)})
    for device, sizes, contexts in (("cuda", lm.SIZES_2025, [128, 256]), ("cpu", ("tiny",), [64])):
        monkeypatch.setattr(lm, "device_kind", lambda device=device: device)
        settings = [(setting.size, setting.context_length, setting.precision) for setting in models.settings()]
        assert settings == [(size, context, "bf16") for size in sizes for context in contexts]


STUDIES = {
    "end-to-end": (lambda training, _: end_to_end.measure(training, 0, 2), ()),
    "compile": (compile_study.measure_model, ()),
    "kernels": (kernels_study.measure, (1, 1)),
    "kernels, next": (lambda *given: {"step_s": kernels_study.step_s(*given)}, (1,)),
}


@pytest.fixture
def own_bench():
    bench.cache_clear()
    yield bench()
    bench.cache_clear()


def test_every_axis_is_an_option_and_every_combination_a_row_with_phases(tmp_path):
    axes = ["--context", "8", "--precision", "fp32", "--precision", "bf16", "--attention", "sdpa"]
    rows, said = run_study(tmp_path, "end-to-end", *TINY, *axes, "--steps", "2", "--warm-up", "1")
    assert len({(row["context"], row["precision"]) for row in rows}) == len(rows) == 2 * 2
    assert {row["attention"] for row in rows} == {"sdpa"}
    assert all(len(row[f"{phase}_s"]) == 2 for row in rows for phase in end_to_end.PHASES)
    assert (tmp_path / "end-to-end.png").stat().st_size > 0
    assert (ON_A_CPU in said) == (not torch.cuda.is_available())


@pytest.mark.slow
def test_warm_up_counts_from_the_first_step_of_a_fresh_process_of_a_foreign_model_too(tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(
        "from torch import nn\n"
        "def build(config, context_length, attention):\n"
        "    return nn.Sequential(nn.Embedding(config.vocab_size, 8), nn.Linear(8, config.vocab_size))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    counts = ["--warm-up", "0", "--warm-up", "2", "--steps", "3"]
    (row,), _ = run_study(tmp_path, "warm-up", *TINY, *counts, "--model", "my_model:build")
    assert len(row["forward_s"]) == 5


def test_steps_have_settled_where_three_in_a_row_are_near():
    row = {"status": "ok", "size": "s", "backward_s": [0.0] * 7, "optimizer_s": [0.0] * 7}
    (sentence,) = warm_up.answers([row | {"forward_s": [9.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0]}], 2)
    assert "9.0" in sentence and "step 3 " in sentence
    (sentence,) = warm_up.answers([row | {"forward_s": [9.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0]}], 2)
    assert "no three" in sentence
    (sentence,) = warm_up.answers([row | {"forward_s": [9.0, 0.3, 0.4, 0.3, 1.0, 1.0, 1.0]}], 4)
    assert "step 5 " in sentence, "a step may be too short to be near, too"


def test_what_is_predicted_not_to_fit_is_not_tried_and_the_largest_that_fits_is_named(monkeypatch):
    monkeypatch.setattr(lm, "memory_bytes", lambda: 24e9)
    large, tiny = (Setting(size, 512, 4, "fp32", "eager", "reference") for size in ("xl", "tiny"))
    rows = list(lm.rows_of([large, tiny], lambda training, setting: {"tried": setting.size}))
    assert [(row["status"], row.get("tried")) for row in rows] == [("out_of_memory", None), ("ok", "tiny")]
    assert rows[0]["predicted_bytes"] > 16 * 1_998_235_200
    monkeypatch.setattr(lm, "device_kind", lambda: "cuda")
    (sentence,) = lm.largest_that_fits([dataclasses.replace(tiny, context_length=256)])
    assert sentence.endswith(" large.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["memory", "--precision", "fp32"],
        ["kernels", "--warm-up", "1"],
        ["compile", "--part", "model", "--variant", "eager"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_foreign_model_goes_through_every_study_with_its_attention_swapped(arguments):
    CALLS.clear()
    done = invoke(*arguments, *TINY, "--attention", "pytorch", "--model", f"{__name__}:build")
    assert done.exit_code == 0, done.output
    assert CALLS[0] == (2, 4, 16, 16)


@pytest.mark.parametrize("name", STUDIES)
def test_a_step_that_is_wrong_or_below_its_floor_gets_no_time_in_any_study(name, monkeypatch, own_bench):
    measure, more = STUDIES[name]
    setting = Setting("tiny", 16, 2, "fp32", "eager", "reference")
    with monkeypatch.context() as patched:
        patched.setattr(training, "adamw", lambda model, capturable: torch.optim.AdamW(model.parameters(), lr=2e-3))
        (wrong,) = lm.rows_of([setting], lambda *given: measure(*given, *more))
    assert wrong["status"] == "wrong" and "AdamW" in wrong["reason"]
    bench.cache_clear()
    slow = {"matmul_flops_per_s": {"float32": 1.0}, "copy_bytes_per_s": 1.0}
    monkeypatch.setattr(ceilings, "measure", lambda clock, kinds=None: slow)
    (fast,) = lm.rows_of([setting], lambda *given: measure(*given, *more))
    assert fast["status"] == "too_fast"
    assert not [key for row in (wrong, fast) for key in row if key.endswith("_s")]
