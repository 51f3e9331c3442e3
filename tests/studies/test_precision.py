"""The precision study: exact sums, dtypes, and training of a model that learns."""

import itertools
import math
from collections import Counter

import pytest
import torch

from perf.studies.precision import accumulation, dtypes, results, training
from tests.studies.running import invoke, run_study

TENSORS = ("parameters", "fc1", "layer norm", "logits", "cross entropy", "gradients")


def tiny(**changed):
    sizes = {"context": 32, "batch": 8, "steps": 12, "seed": 0, "lr": 3e-3}
    return training.Run(config=training.sizes()["tiny"], device="cpu", **(sizes | changed))


def test_the_sums_are_exact():
    rows = accumulation.rows()
    assert [(row["sum"], row["terms"], row["value"]) for row in rows] == [
        ("fp32", 1000, 10.000133514404297),
        ("fp16", 1000, 9.953125),
        ("fp32 += fp16", 1000, 10.00213623046875),
        ("fp32 += fp16.float()", 1000, 10.00213623046875),
        ("bf16", 1000, 4.0),
        ("fp16", 5000, 32.0),
    ]
    # A sum stands still from where a term is half a unit or less: 4 has come after 350 terms, 32 after 2798.
    assert [row["stalled_after"] for row in rows] == [None, None, None, None, 350, 2798]


def test_the_error_of_a_sum_is_that_of_its_terms_and_that_of_its_accumulator():
    fp32, fp16, mixed, cast, bf16, longer = accumulation.rows()
    assert fp16["representation_error"] == mixed["representation_error"] == 0.00213623046875
    assert fp16["accumulation_error"] == 9.953125 - 10.00213623046875
    assert mixed["accumulation_error"] == cast["accumulation_error"] == 0
    assert longer["representation_error"] == 5 * 0.00213623046875
    assert abs(fp32["representation_error"]) < 1e-6 < fp32["accumulation_error"]
    for row in (fp32, fp16, mixed, cast, bf16, longer):
        assert row["error"] == row["representation_error"] + row["accumulation_error"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its own test")
def test_a_cpu_shows_its_own_dtypes_and_those_of_cuda():
    fp16, fp16_on_cuda, bf16, bf16_on_cuda = dtypes.rows("cpu")
    assert [fp16_on_cuda[name] for name in TENSORS] == ["fp32", "fp16", "fp32", "fp16", "fp32", "fp32"]
    assert fp16_on_cuda["mean()"] == "fp16"
    assert [bf16_on_cuda[name] for name in TENSORS] == ["fp32", "bf16", "fp32", "bf16", "fp32", "fp32"]
    # CPU autocast has no layer_norm in its lists: it stays in what fc1 gave.
    assert [fp16[name] for name in (*TENSORS, "mean()")] == ["fp32", "fp16", "fp16", "fp16", "fp32", "fp32", "fp16"]
    assert [bf16[name] for name in (*TENSORS, "mean()")] == ["fp32", "bf16", "bf16", "bf16", "fp32", "fp32", "bf16"]
    first, *_ = dtypes.answer(dtypes.rows("cpu"), dtypes.variances())
    assert first.startswith("This looked at a CPU")
    assert "layer norm (fp16 here, fp32 there, under fp16)" in first
    assert "fc1 (" not in first


@pytest.mark.gpu
def test_cuda_gives_the_documented_dtypes():
    fp16, fp16_documented, bf16, bf16_documented = dtypes.rows("cuda")
    names = (*TENSORS, "mean()")
    assert [fp16[name] for name in names] == [fp16_documented[name] for name in names]
    assert [bf16[name] for name in names] == [bf16_documented[name] for name in names]


def test_a_variance_overflows_and_vanishes_in_fp16_alone():
    fp32, fp16, bf16 = dtypes.variances()
    large, small = "variance of +-300", "variance of +-0.0001"
    assert (fp16[large], fp16[small]) == (math.inf, 0.0)
    assert fp32[large] == 90000
    assert bf16[large] == pytest.approx(90000, rel=2**-8)
    assert bf16[small] == pytest.approx(1e-8, rel=2**-6)
    assert (fp32["bits"], fp16["bits"], bf16["bits"]) == (24, 11, 8)


def test_autocast_has_no_argument_device():
    assert "unexpected keyword argument 'device'" in dtypes.misspelt()


def test_the_stream_follows_its_rule_and_its_seed():
    def first_three(seed):
        return list(itertools.islice(training.stream(tiny(seed=seed, context=64)), 3))

    batches, again, other = first_three(0), first_three(0), first_three(1)
    for (ids, targets), (same_ids, same_targets) in zip(batches, again, strict=True):
        assert torch.equal(ids, same_ids) and torch.equal(targets, same_targets)
        assert torch.equal(ids[:, 1:], targets[:, :-1])
    assert not torch.equal(batches[0][0], batches[1][0])
    assert not torch.equal(batches[0][0], other[0][0])
    ids, targets = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    following = (7 * ids[:, 1:] + 1 + ids[:, :-1] % 2 * 128) % 256
    assert (following == targets[:, 1:]).float().mean() == pytest.approx(1 - training.NOISE, abs=0.03)


def test_the_lowest_loss_is_that_of_the_rule_itself():
    run = tiny(context=64, batch=4000)
    ids, targets = next(training.stream(run))
    hits = (7 * ids[:, 1:] + 1 + ids[:, :-1] % 2 * 128) % 256 == targets[:, 1:]
    wrong = training.NOISE / 256
    losses = -torch.where(hits, 1 - training.NOISE + wrong, wrong).log()
    assert float(losses.sum(1).add(math.log(256)).mean() / 64) == pytest.approx(run.lowest_loss, rel=0.02)


def test_the_weights_depend_on_the_seed_alone():
    def head(seed):
        torch.rand(1)  # whatever was drawn before
        return training.train_step(tiny(seed=seed), "fp32").model.lm_head.weight

    before = torch.random.get_rng_state()
    assert torch.equal(head(0), head(0))
    assert not torch.equal(head(0), head(1))
    torch.random.set_rng_state(before)
    training.train_step(tiny(), "fp32")
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.slow
def test_a_model_learns_the_stream():
    run = tiny(steps=120, context=64)
    row = training._train(run, "fp32")
    assert row["losses"][0] == pytest.approx(math.log(256), abs=0.5)
    assert run.lowest_loss < row["final_loss"] < 2.0
    assert row["final_loss"] == pytest.approx(sum(row["losses"][-6:]) / 6)


@pytest.mark.slow
def test_overflows_are_counted_and_their_steps_skipped(monkeypatch):
    monkeypatch.setattr(training, "SCALE", 2.0**40)
    fp32, _, fp16 = training.rows(tiny(steps=40))
    assert 0 < fp16["skipped_steps"] < 40
    assert fp16["skipped_steps"] == fp16["overflowed_steps"] <= fp16["overflowed_elements"]
    assert fp16["loss_scale"] == 2.0 ** (40 - fp16["skipped_steps"])
    assert (fp32["skipped_steps"], fp32["overflowed_steps"], fp32["loss_scale"]) == (0, 0, None)
    assert all(map(math.isfinite, fp16["losses"]))


def test_gradients_that_vanish_in_fp16_are_counted_and_scaling_brings_them_back(monkeypatch):
    backward = training.measured("training", "TrainStep").backward
    # Gradients small enough to lose in fp16, as those of a large batch over a large vocabulary.
    monkeypatch.setattr(
        training.measured("training", "TrainStep"), "backward", lambda s, loss: backward(s, loss / 2**14)
    )
    fp16, scaled, bf16 = training.underflow(tiny())
    assert fp16["nonzero_in_fp32"] > 50_000
    assert fp16["zero_here"] > 0.1 * fp16["nonzero_in_fp32"]
    assert scaled["zero_here"] < 0.01 * fp16["zero_here"]
    assert bf16["zero_here"] < 0.01 * fp16["zero_here"]
    assert not any(row["not_finite"] for row in (fp16, scaled, bf16))


def test_the_study_from_end_to_end(tmp_path):
    tiny = ["--size", "tiny", "--steps", "12", "--context", "16", "--batch", "2"]
    rows, said = run_study(tmp_path, "precision", *tiny)
    for words in ("9.953125", "device_type", "samples/s", "random seed 0"):
        assert words in said
    assert "step/s" not in said  # no bar where no terminal looks
    if not torch.cuda.is_available():
        assert "measured on this CPU" in said
    assert Counter(row["part"] for row in rows) == {
        "accumulation": 6,
        "dtypes": 4,
        "variances": 3,
        "setup": 1,
        "training": 3,
        "underflow": 3,
    }
    trained = [row for row in rows if row["part"] == "training"]
    assert all(len(row["losses"]) == 12 and row["samples_per_s"] > 0 for row in trained)
    picture = (tmp_path / "precision-loss.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and 10_000 < len(picture) < 200_000


def test_every_precision_starts_alike_and_one_that_does_not_fit_costs_no_other(monkeypatch):
    run = tiny()
    rows = training.rows(run)
    assert [row["precision"] for row in rows] == ["fp32", "bf16", "fp16"]
    first = [row["losses"][0] for row in rows]
    assert first == pytest.approx([first[0]] * 3, abs=0.01)
    assert len({tuple(row["losses"]) for row in rows}) == 3  # three precisions, not one three times
    train_step = training.train_step

    def no_room_for_fp32(run, precision):
        if precision == "fp32":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_step(run, precision)

    monkeypatch.setattr(training, "train_step", no_room_for_fp32)
    rows, vanished = training.rows(run), training.underflow(run)
    assert [row["status"] for row in rows] == ["out_of_memory", "ok", "ok"]
    assert [row["status"] for row in vanished] == ["out_of_memory"]
    assert results.training_table(run, rows)[0]["samples/s"].startswith("out of memory")
    assert "fp32" in results.answer(run, rows, vanished)[0]


@pytest.mark.parametrize("arguments", [["--size", "gigantic"], ["--context", "1"], ["--lr", "0"], ["--lr", "nan"]])
def test_bad_options_get_one_line(arguments):
    done = invoke("precision", *arguments)
    assert done.exit_code == 2
    assert arguments[0] in done.output.splitlines()[-1]
