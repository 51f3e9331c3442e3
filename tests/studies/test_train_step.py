"""Two arms of a training step, in turn, over several processes: the speed-up, its interval, and what cannot run."""

import functools

import pytest
import torch

from cs336_systems import training
from cs336_systems.attention import reference
from cs336_systems.transformer import TransformerLM
from perf.harness import ceilings
from perf.studies.speedups import FEWEST, Effort, bound_of
from perf.studies.train_step import arms, study
from tests.studies.running import invoke, run_study

TINY = ["--size", "tiny", "--context", "16", "--batch", "2", "--rounds", "2"]


def peer(config, weights, ids, targets):
    """A user's step, as `--against` takes it."""
    attention = functools.partial(reference.scaled_dot_product_attention, is_causal=True)
    model = TransformerLM(config, ids.shape[1], attention).to(ids.device)
    model.load_state_dict(weights, strict=True)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step


def spoilt(**wrong):
    """The same with one fault in it."""

    def build(config, weights, ids, targets):
        step = peer(config, weights, wrong.get("ids", ids), targets)
        model = next(cell.cell_contents for cell in step.__closure__ if isinstance(cell.cell_contents, TransformerLM))
        if "scaled" in wrong:
            for parameter in model.layers[-1].parameters():
                parameter.data *= wrong["scaled"]
        if "frozen" in wrong:
            for parameter in model.parameters():
                parameter.register_hook(torch.zeros_like)
        if "sees_all" in wrong:
            for layer in model.layers:
                layer.attn.attention = functools.partial(reference.scaled_dot_product_attention, is_causal=False)
        if "adds_up" in wrong:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(added_up())
        return (lambda: print(step())) if "silent" in wrong else step

    return build


def added_up():
    """Gradients that no step zeroes."""
    total = 0

    def add(parameter):
        nonlocal total
        total = total + parameter.grad
        parameter.grad = total.clone()

    return add


other_weights, without_gradients, silent = spoilt(scaled=1.5), spoilt(frozen=True), spoilt(silent=True)
without_mask, never_zeroed = spoilt(sees_all=True), spoilt(adds_up=True)


def test_a_peer_beside_ours_has_samples_and_peers_that_compute_something_else_have_none(tmp_path):
    peers = ("peer", "other_weights", "without_gradients", "silent", "without_mask", "never_zeroed")
    against = [word for name in peers for word in ("--against", f"{__name__}:{name}")]
    rows, _ = run_study(tmp_path, "train-step", *TINY, "--ours", "fp32/eager/sdpa", *against, "--processes", "2")
    assert [row["status"] for row in rows] == ["ok", *["wrong"] * 5]
    assert (
        [len(samples) for samples in rows[0]["against_s"]] == [len(samples) for samples in rows[0]["ours_s"]] == [2, 2]
    )
    assert [row["against_s"] for row in rows[1:]] == [[]] * 5
    loss, change = "the loss differs", "the change of the loss in"
    causes = (loss, change, "NoneType", loss, change)
    assert all(cause in row["reason"] for cause, row in zip(causes, rows[1:], strict=True))
    assert (tmp_path / "train-step.png").stat().st_size > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # raised by torch's tracing
@pytest.mark.parametrize(
    "variant", ["eager", *(pytest.param(name, marks=pytest.mark.slow) for name in ("compiled_blocks", "compiled"))]
)
def test_the_plain_steps_compute_what_ours_compute(variant):
    names, case = ("fp32/eager/sdpa", f"{study.PLAIN}:{variant}"), {"size": "tiny", "context_length": 24, "batch": 2}
    reply = arms.samples_of(names, case, 2, 0)
    assert reply["status"] == "ok" and list(map(len, reply["samples_s"])) == [2, 2], reply


@pytest.mark.skipif(torch.cuda.is_available(), reason="its defaults are a GPU's here")
def test_a_model_of_one_s_own_is_compared_with_itself(tmp_path):
    own = ["--model", f"{__name__}:TransformerLM"]
    for options, against in (([], f"{study.PLAIN}:eager"), (own, "fp32/eager/reference")):
        (row,), said = run_study(tmp_path, "train-step", *TINY, *options, "--processes", "2")
        assert (row["against"], row["status"]) == (against, "ok")
        assert ("TFLOP/s" in said) == (options is not own)  # nobody knows another model's FLOPs


def test_an_arm_of_ours_that_is_wrong_or_too_fast_gets_no_time(monkeypatch):
    names, case = ("fp32/eager/sdpa", "fp32/eager/reference"), {"size": "tiny", "context_length": 16, "batch": 2}
    with monkeypatch.context() as patched:
        patched.setattr(training, "adamw", lambda model, capturable: torch.optim.AdamW(model.parameters(), lr=2e-3))
        wrong = arms.samples_of(names, case, 2, 1)
    assert wrong["status"] == "wrong" and "AdamW" in wrong["reason"]
    slow = {"matmul_flops_per_s": {"float32": 1.0}, "copy_bytes_per_s": 1.0}
    monkeypatch.setattr(ceilings, "measure", lambda clock, kinds=None: slow)
    assert arms.samples_of(names, case, 2, 0)["status"] == "too_fast"


@pytest.mark.parametrize("arm", ["fp32", "fp8/eager/sdpa", "no_such_module:step", "json:no_such"])
def test_an_arm_that_cannot_be_is_one_line(arm):
    done = invoke("train-step", *TINY, "--ours", arm)
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert done.output.startswith(f"Error: --ours '{arm}' was given; allowed: ")


@pytest.mark.parametrize("option", ["--against", "--model"])
@pytest.mark.parametrize("module", ["raise SystemExit(3)", "raise OSError('a\\nb')", "def f(:", "build = 1"])
def test_a_module_that_cannot_be_imported_is_one_line_before_anything_is_measured(
    option, module, tmp_path, monkeypatch, request
):
    name = f"unsound_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    done = invoke("train-step", *TINY, option, f"{name}:build", "--out", str(tmp_path / "out"))
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1), done.output
    assert done.output.startswith(f"Error: {option} '{name}:build' was given; allowed: module:function")


class Processes:
    """Fresh processes that answer with `reply(names, number)` and remember their arms and the arm built first."""

    def __init__(self, reply):
        self.reply, self.started = reply, []

    def __call__(self, names, case, rounds, built_first, expected):
        self.started.append((names, built_first))
        return self.reply(names, len(self.started) - 1)


def measured(reply, *against, processes=20, half_width=0.02):
    fresh = Processes(reply)
    effort, model = Effort(1, processes, half_width), {"size": "small", "context_length": 512, "batch": 4}
    return list(study.measure([model], "a", against, effort, fresh)), fresh.started


def times(*seconds, busy=()):
    return {"status": "ok", "samples_s": [[each] for each in seconds], "busy_s": [[each] for each in busy]}


def test_the_pilot_fixes_how_many_processes_there_are_and_each_arm_is_built_first_in_turn():
    (few,), started = measured(lambda names, number: times(1.01 if number == 0 else 1.0, 1.0), "b")
    assert (len(few["ours_s"]), started) == (FEWEST, [(("a", "b"), first) for first in (0, 1, 0)])
    rows, started = measured(lambda names, number: times(1.0, 2.0, 4.0), "b", "c", processes=4, half_width=0.0)
    assert started == [(("a", "b", "c"), first) for first in (0, 1, 2)]
    assert [(row["against"], row["against_s"]) for row in rows] == [("b", [[2.0]] * 3), ("c", [[4.0]] * 3)]
    (some,), _ = measured(
        lambda names, number: times((1.01, 1.0, 1.0, 11.0)[min(number, 3)], 1.0), "b", half_width=0.01
    )
    assert FEWEST < len(some["ours_s"]) < 20, "a slow process after the pilot changes nothing"


@pytest.mark.parametrize(("busy", "processes"), [(1.25, FEWEST), (0.8, 6)])
def test_a_scattering_host_is_bounded_by_its_gpu_unless_that_needs_less_than_ours(busy, processes):
    """The other's host takes another time in every process, and its GPU does not."""
    hosts = (2.0, 4.0, 3.0, 5.0, 2.5, 6.0)
    (row,), _ = measured(lambda names, number: times(1.0, hosts[number], busy=(0.9, busy)), "b", processes=6)
    assert len(row["ours_s"]) == processes
    assert bound_of(row) == (pytest.approx(busy), pytest.approx(0, abs=1e-12))
    (sentence,) = study.answers([row], 0.02)
    assert ("1.250" in sentence) == (busy > 1)


def test_a_throttled_process_costs_its_own_samples_alone():
    hot = {"status": "throttled", "reason": "the GPU slowed itself down"}
    (row,), started = measured(lambda names, number: hot if number == 2 else times(1.0, 2.0), "b", processes=4)
    assert (row["status"], row["against_s"], len(started)) == ("ok", [[2.0]] * 2, 3)


def test_arms_that_do_not_fit_together_go_in_pairs_and_what_fails_is_a_row():
    full = {"status": "out_of_memory", "reason": "requested 2.00 GiB"}
    rows, _ = measured(lambda names, number: full if "large" in names else times(1.0, 1.0), "large", "b", processes=3)
    assert [row["status"] for row in rows] == ["out_of_memory", "ok"]
    assert "requested 2.00 GiB" in next(iter(study.shown(rows)))["ours, ms"]


@pytest.mark.gpu
def test_a_captured_arm_beside_an_eager_one(tmp_path):
    pair = ["--ours", "bf16_weights/compiled_cuda_graph/sdpa", "--against", "bf16/eager/sdpa"]
    rows, _ = run_study(tmp_path, "train-step", *TINY, *pair, "--processes", "3")
    assert [row["status"] for row in rows] == ["ok"]
