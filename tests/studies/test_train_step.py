"""Two arms of a training step, in turn, over several processes: the speed-up, its interval, and what cannot run."""

import functools
import json
import math

import pytest
import torch
from click.testing import CliRunner

from cs336_systems import training
from cs336_systems.attention import reference
from cs336_systems.transformer import TransformerLM
from perf.__main__ import main
from perf.harness import ceilings
from perf.studies import speedups
from perf.studies.train_step import arms, study
from perf.studies.train_step.arms import TrainingCase

TINY = ["--size", "tiny", "--context", "16", "--batch", "2", "--rounds", "2"]
EAGER = ["--ours", "fp32/eager/sdpa", "--against", "fp32/eager/reference"]


def invoke(*arguments):
    return CliRunner().invoke(main, ["study", "train-step", *arguments])


def row(ours_s, against_s, **more):
    return {"size": "small", "context": 512, "batch": 4, "ours": "a", "against": "b", "status": "ok"} | {
        "ours_s": ours_s,
        "against_s": against_s,
        "against_busy_s": [],
        **more,
    }


def peer(config, weights, ids, targets):
    """A step of one's own, as `--against` takes it."""
    attention = functools.partial(reference.scaled_dot_product_attention, is_causal=True)
    model = TransformerLM(config, ids.shape[1], attention)
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
            for one in model.layers[-1].parameters():
                one.data *= wrong["scaled"]
        if "frozen" in wrong:
            for one in model.parameters():
                one.register_hook(torch.zeros_like)
        return (lambda: print(step())) if "silent" in wrong else step

    return build


other_weights, without_gradients, silent = spoilt(scaled=1.5), spoilt(frozen=True), spoilt(silent=True)


def test_a_pair_of_our_own_and_a_peer_from_elsewhere(tmp_path):
    done = invoke(*TINY, *EAGER, "--against", f"{__name__}:peer", "--processes", "2", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    own, foreign = json.loads((tmp_path / "train-step.json").read_text())["rows"]
    assert [len(samples) for samples in own["ours_s"]] == [2, 2]
    assert [len(samples) for samples in foreign["against_s"]] == [2, 2]
    assert "too wide for a verdict" in done.output or "times as" in done.output
    assert (tmp_path / "train-step.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other_weights", "wrong: the loss differs from float64"),
        ("without_gradients", "wrong: what a step takes off the loss differs"),
        ("silent", "returned NoneType; allowed: its loss, one number"),
    ],
)
def test_a_peer_that_computes_something_else_gets_no_time(name, said, tmp_path):
    against = ["--ours", "fp32/eager/sdpa", "--against", f"{__name__}:{name}"]
    done = invoke(*TINY, *against, "--processes", "2", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "train-step.json").read_text())["rows"]
    assert (row["status"], row["against_s"]) == ("wrong", [])
    assert said in done.output


def test_an_arm_of_ours_that_is_wrong_or_too_fast_gets_no_time(monkeypatch):
    names, cell = ("fp32/eager/sdpa", "fp32/eager/reference"), TrainingCase("tiny", 16, 2)
    good = arms.samples_of(names, cell, 2, 0)
    assert (good["status"], [len(one) for one in good["samples_s"]]) == ("ok", [2, 2])
    monkeypatch.setattr(training, "adamw", lambda model, capturable: torch.optim.AdamW(model.parameters(), lr=2e-3))
    wrong = arms.samples_of(names, cell, 2, 1, good["known"])
    assert wrong["status"] == "wrong" and "AdamW's update differs" in wrong["reason"]
    monkeypatch.undo()
    slow = {"matmul_flops_per_s": {"float32": 1.0}, "copy_bytes_per_s": 1.0}
    monkeypatch.setattr(ceilings, "measure", lambda clock, kinds=None: slow)
    fast = arms.samples_of(names, cell, 2, 0, good["known"])
    assert fast["status"] == "too_fast" and "below the physical floor" in fast["reason"]


def model(config, context_length, attention):
    """A model of one's own that says how it was asked for."""
    raise ValueError(f"{config.num_layers} layers at {context_length}")


def test_our_arms_take_a_model_of_ones_own_and_what_fails_is_a_row():
    done = invoke(*TINY, *EAGER, "--processes", "2", "--model", f"{__name__}:model")
    assert done.exit_code == 0, done.output
    assert "ValueError: 2 layers at 16" in done.output


def test_the_speed_up_is_of_neighbours_so_that_drift_cancels():
    drifting = [1.0, 2.0, 4.0, 8.0, 16.0]
    speedup, half = speedups.speedup_of(row([[0.9 * one for one in drifting]] * 3, [drifting] * 3))
    assert speedup == pytest.approx(1 / 0.9)
    assert half == pytest.approx(0, abs=1e-12)


def test_one_process_with_a_slow_host_does_not_decide():
    found = [0.58, 0.584, 0.475, 0.577, 0.58, 0.572]
    speedup, half = speedups.speedup_of(row([[one] for one in found], [[1.0]] * 6))
    assert speedup == pytest.approx(1 / 0.577, abs=3e-3)
    assert half < 0.05, "of the mean it would be 0.13"


def test_the_interval_is_students_over_processes():
    processes = [[0.9], [1.0], [1.1]]
    speedup, half = speedups.speedup_of(row(processes, [[1.0]] * 3))
    logs = [math.log(one) for (one,) in processes]
    mean = sum(logs) / 3
    error = (sum((log - mean) ** 2 for log in logs) / 2 / 3) ** 0.5
    assert speedup == pytest.approx(math.exp(-mean))
    assert math.log1p(half) == pytest.approx(4.302653 * error)
    assert speedups.speedup_of(row([[1.0]], [[2.0]])) == (pytest.approx(2.0), math.inf)


def test_a_geometric_mean_has_the_interval_of_the_processes_that_all_rows_have():
    rows = [row([[0.5], [0.5], [0.5], [9.0]], [[1.0]] * 4), row([[2.0], [2.2], [1.8]], [[1.0]] * 3)]
    mean, half = speedups.geometric_mean(rows)
    alone, alone_half = speedups.speedup_of(rows[1])
    assert mean == pytest.approx((2 * alone) ** 0.5)
    assert math.log1p(half) == pytest.approx(math.log1p(alone_half) / 2)


def test_the_first_processes_fix_how_many_there_are(monkeypatch):
    built_first = []

    def found(names, cell, rounds, first, known):
        built_first.append(first)
        scatter = 0.01 if len(built_first) == 1 else 10.0 * (len(built_first) == 4)
        return {"status": "ok", "samples_s": [[1.0 + scatter], [1.0]], "busy_s": []}

    monkeypatch.setattr(study, "_in_a_fresh_process", found)
    (few,) = study.measure([TrainingCase("small", 512, 4)], "a", ("b",), 1, processes=20, half_width=0.02)
    assert len(few["ours_s"]) == speedups.FEWEST
    assert built_first == [0, 1, 0]
    (many,) = study.measure([TrainingCase("small", 512, 4)], "a", ("b",), 1, processes=4, half_width=0.0)
    assert len(many["ours_s"]) == 4
    built_first.clear()
    (some,) = study.measure([TrainingCase("small", 512, 4)], "a", ("b",), 1, processes=20, half_width=0.01)
    assert len(some["ours_s"]) == speedups.processes_for_speedup(row([[1.01], [1.0], [1.0]], [[1.0]] * 3), 0.01, 20)
    assert speedups.FEWEST < len(some["ours_s"]) < 20, "a slow process after the pilot changes nothing"


def test_the_verdict_is_against_the_best_of_the_others_and_only_where_it_was_measured():
    slow, fast = (row([[1.0]] * 3, [[other]] * 3, against=name) for name, other in (("slow", 4.0), ("fast", 2.0)))
    assert list(study.answers([slow, fast], 0.02)) == [
        "small, context 512: a is 2.000\u00d7 ± 0.0 % as fast as the best of the others, fast."
    ]
    noisy = row([[1.0], [1.2], [0.8]], [[2.0]] * 3)
    (sentence,) = study.answers([noisy], 0.02)
    assert "too wide for a verdict" in sentence


def host_bound(busy_s):
    """Another arm whose host is another in every process, and whose GPU is not."""
    hosts = iter([2.0, 4.0, 3.0, 5.0, 2.5, 6.0])

    def found(names, cell, rounds, first, known):
        return {"status": "ok", "samples_s": [[1.0], [next(hosts)]], "busy_s": [[0.9], [busy_s]]}

    return found


def test_what_a_host_makes_uncertain_is_bounded_by_what_the_gpu_needs(monkeypatch):
    monkeypatch.setattr(study, "_in_a_fresh_process", host_bound(1.25))
    (one,) = study.measure([TrainingCase("small", 512, 4)], "a", ("b",), 1, processes=6, half_width=0.02)
    assert len(one["ours_s"]) == speedups.FEWEST
    assert speedups.bound_of(one) == (pytest.approx(1.25), pytest.approx(0, abs=1e-12))
    (sentence,) = study.answers([one], 0.02)
    assert "a is at least 1.250\u00d7 ± 0.0 % as fast as the best of the others" in sentence
    assert "1.250\u00d7 ± 0.0 %" in study.table([one])


def test_a_gpu_that_needs_less_than_we_do_bounds_nothing(monkeypatch):
    monkeypatch.setattr(study, "_in_a_fresh_process", host_bound(0.8))
    (one,) = study.measure([TrainingCase("small", 512, 4)], "a", ("b",), 1, processes=6, half_width=0.02)
    assert len(one["ours_s"]) == 6
    (sentence,) = study.answers([one], 0.02)
    assert "too wide for a verdict" in sentence


def test_all_arms_are_in_each_process_and_each_allocates_first_in_turn(monkeypatch):
    asked = []

    def found(names, cell, rounds, first, known):
        asked.append((names, first))
        return {"status": "ok", "samples_s": [[1.0], [2.0], [4.0]], "busy_s": []}

    monkeypatch.setattr(study, "_in_a_fresh_process", found)
    rows = list(study.measure([TrainingCase("small", 512, 4)], "a", ("b", "c"), 1, 3, 0.02))
    assert asked == [(("a", "b", "c"), first) for first in (0, 1, 2)]
    assert [(row["against"], row["against_s"]) for row in rows] == [("b", [[2.0]] * 3), ("c", [[4.0]] * 3)]


def test_arms_that_do_not_fit_together_go_in_pairs_and_what_fails_is_a_row(monkeypatch):
    def found(names, cell, rounds, first, known):
        if "large" in names:
            return {"status": "out_of_memory", "reason": "asked for 2.00 GiB"}
        return {"status": "ok", "samples_s": [[1.0], [1.0]], "busy_s": []}

    monkeypatch.setattr(study, "_in_a_fresh_process", found)
    rows = list(study.measure([TrainingCase("small", 512, 4)], "a", ("large", "b"), 1, 3, 0.02))
    assert [one["status"] for one in rows] == ["out_of_memory", "ok"]
    assert "asked for 2.00 GiB" in study.table(rows)


@pytest.mark.parametrize("arm", ["fp32", "fp32/eager", "fp8/eager/sdpa", "no_such_module:step", "json:no_such"])
def test_an_arm_that_cannot_be_is_one_line(arm):
    done = invoke(*TINY, "--ours", arm)
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: '{arm}' was given; allowed: ")
    assert len(done.output.splitlines()) == 1


@pytest.mark.gpu
def test_a_captured_arm_beside_an_eager_one():
    arms = ["--ours", "bf16_weights/compiled_cuda_graph/sdpa", "--against", "bf16/eager/sdpa"]
    done = invoke(*TINY, *arms, "--processes", "3")
    assert done.exit_code == 0, done.output
    assert "times as fast as" in done.output or "too wide" in done.output
