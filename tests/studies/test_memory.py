"""The memory study counts every byte of a pass, says whose the peak is, and survives what does not fit."""

import pickle
import random

import pytest
import torch

from perf.harness.status import describe
from perf.studies import lm
from perf.studies.device import ON_A_CPU, device_kind
from perf.studies.lm import Setting
from perf.studies.memory import recording, study, timeline
from perf.studies.memory.recording import Recording
from tests.studies.running import run_study

TINY = ["--size", "tiny", "--context", "16", "--batch", "2"]
SETTING = Setting("tiny", 16, 2, "fp32", "eager", "reference")


def alloc(address, size, *frames):
    frames = [{"filename": name, "line": 1, "name": "f"} for name in frames]
    return {"action": "alloc", "addr": address, "size": size, "frames": frames}


def free(address, size):
    return {"action": "free_completed", "addr": address, "size": size, "frames": []}


TRACE = Recording(
    phases=[
        ("zero_grad", [free(1, 300)]),  # from before the recording: last step's gradient
        (
            "forward",
            [
                alloc(2, 100, "/a/b/model.py"),
                alloc(3, 100, "/a/b/model.py"),
                alloc(4, 50, "/a/b/loss.py"),
                {"action": "free_requested", "addr": 4, "size": 50, "frames": []},
                free(4, 50),
            ],
        ),
        ("backward", [alloc(1, 300), alloc(4, 400), free(4, 400), free(2, 100), free(3, 100)]),
        ("optimizer", []),
    ],
    baseline_bytes=1000,
    allocated_bytes=(1024, 2048),
)


def test_a_trace_is_replayed_from_what_was_there_before_it():
    summary = timeline.summary(TRACE, {1: "gradient of a weight"})
    assert [phase["bytes"] for phase in summary["phases"]] == [
        [1000, 700],
        [700, 800, 900, 950, 900],
        [900, 1200, 1600, 1200, 1100, 1000],
        [1000],
    ]
    assert (summary["peak_phase"], summary["requested_peak_bytes"]) == ("backward", 1600)
    assert (summary["before_bytes"], summary["peak_bytes"]) == (1024, 2048)


def test_the_largest_allocations_are_grouped_and_say_who_made_them_and_when():
    summary = timeline.summary(TRACE, {1: "gradient of a weight", 4: "a gradient that took a freed address"})
    assert [(group["bytes"], group["count"], group["phase"], group["where"]) for group in summary["largest"]] == [
        (400, 1, "backward", "a gradient that took a freed address"),  # nothing later lies at its address
        (300, 1, "backward", "gradient of a weight"),
        (100, 2, "forward", "b/model.py:1 f"),
    ]


def test_a_thinned_course_keeps_its_ends_and_every_extreme():
    course = [*(random.Random(0).randrange(10**9) for _ in range(12_345)), 0, 10**9, 5]  # the last is no extreme
    short = timeline.thinned(course)
    assert len(short) <= timeline.POINTS + 2
    assert (short[0], short[-1], min(short), max(short)) == (course[0], course[-1], min(course), max(course))
    assert timeline.thinned([3, 1, 2]) == [3, 1, 2]


def test_rows_pictures_and_answers(tmp_path):
    rows, said = run_study(tmp_path, "memory", *TINY)
    assert "2 x 16 x 64 x 4 bytes = 0.01 MiB" in said
    assert "tiny, context 16, bf16: against fp32, it changes the peak of the forward from" in said
    assert "the largest allocations of the step are of" in said
    assert "attention/reference.py:" in said or "training.py:" in said
    assert [row["precision"] for row in rows] == ["fp32", "bf16"]
    for row in rows:
        assert (tmp_path / f"memory_tiny_16_{row['precision']}.png").stat().st_size < 200_000
        assert [phase["name"] for phase in row["forward"]["phases"]] == ["forward"]
        assert [phase["name"] for phase in row["step"]["phases"]] == list(recording.STEP)
        assert row["step"]["peak_bytes"] > row["forward"]["peak_bytes"] > row["forward"]["before_bytes"] > 0
        alone, training = row["forward"]["phases"][0], row["step"]["phases"][1]
        kept, needed = training["end_bytes"] - training["start_bytes"], alone["peak_bytes"] - alone["start_bytes"]
        assert needed < kept  # a forward that keeps its activations needs them and its temporaries
        for part in (row["forward"], row["step"]):
            assert part["phases"][-1]["end_bytes"] == pytest.approx(part["requested_before_bytes"], abs=1024)
    if not torch.cuda.is_available():
        assert ON_A_CPU in said
        assert not list(tmp_path.glob("*.pickle"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="storages are watched only where there is no CUDA allocator")
def test_a_pass_on_a_cpu_is_counted_to_the_byte():
    train = lm.training_of(SETTING).train
    weights = sum(parameter.nbytes for parameter in train.model.parameters())
    alone = timeline.summary(recording.record(recording.forward_alone(train), train, None), {})
    held = recording.held_bytes(train)
    assert held["parameters"] == weights
    assert held["gradients"] == held["optimizer_state"] == 0
    assert alone["before_bytes"] == weights + held["buffers_and_batch"]
    train.step()
    held = recording.held_bytes(train)
    step = timeline.summary(recording.record(recording.whole_step(train), train, None), {})
    assert (held["gradients"], held["optimizer_state"] // weights) == (weights, 2)
    assert step["before_bytes"] == sum(held.values())
    gone, forward, backward, _ = step["phases"]
    assert gone["start_bytes"] - gone["end_bytes"] == weights
    assert backward["end_bytes"] - forward["start_bytes"] == weights + 4  # and the loss


def test_what_a_foreign_model_holds_besides_its_parameters_is_no_allocation_of_a_pass():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8, 8))
            self.table = torch.ones(1000, 8)

        def forward(self, ids):
            return self.table[ids] @ self.weight

    with torch.device(device_kind()):
        model, ids = Model(), torch.zeros(2, 4, dtype=torch.int64)
    train = study.measured("training", "make_train_step")(model, ids, ids)
    summary = timeline.summary(recording.record(recording.forward_alone(train), train, None), {})
    assert summary["requested_before_bytes"] >= 1000 * 8 * 4
    assert max(group["bytes"] for group in summary["largest"]) < 1000


@pytest.mark.gpu
def test_the_replayed_peak_is_the_allocators_own_and_the_snapshot_is_a_pickle(tmp_path):
    train = lm.training_of(SETTING).train
    for _ in range(2):
        train.step()
    path = tmp_path / "snapshot.pickle"
    recorded = recording.record(recording.whole_step(train), train, path)
    asked = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert timeline.summary(recorded, {})["requested_peak_bytes"] == asked
    with path.open("rb") as file:
        assert any(pickle.load(file)["device_traces"])


@pytest.mark.gpu
def test_a_workspace_of_cublas_is_found_whatever_ran_before():
    assert study.workspaces()["after_product_bytes"] > 0
    first, again = study.workspaces(), study.workspaces()
    assert first == again


def test_a_step_that_does_not_fit_leaves_the_forward(monkeypatch):
    def full(train):
        yield "zero_grad"
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ...")

    monkeypatch.setitem(study.PASSES, "step", full)
    (row,) = lm.rows_of([SETTING], study.measure)
    assert describe(row) == "out of memory: step requested 2.00 GiB"
    assert "phases" in row["forward"]
    assert "requested 2.00 GiB" in study.peaks([row])


def test_the_answers_have_the_bytes_of_the_rows():
    step = timeline.summary(TRACE, {1: "gradient of a weight"})
    row = SETTING.axes() | {"step": step, "held_before_step": {"parameters": 600, "gradients": 300}}
    other = row | {"precision": "bf16", "step": step | {"peak_bytes": 1024}}
    course, _, change, held, largest, _ = study.answers([row, other])
    for sentence, numbers in {
        held: ("parameters 600 B", "gradients 300 B", "124 B"),
        course: ("700 B to 900 B", "1.56 KiB", "in the backward"),
        change: ("2.00 KiB to 1.00 KiB", "-50.0%"),
        largest: ("400 B", "made in the backward"),
    }.items():
        assert all(number in sentence for number in numbers), sentence


@pytest.mark.gpu
def test_peaks_on_a_gpu_are_the_same_bytes_in_any_order():
    axes = {"size": ("small",), "context": (128, 256), "precision": ("fp32", "bf16")}
    settings = lm.Models(axes, 4).settings()

    def peaks(settings):
        rows = lm.rows_of(settings, study.measure)
        return {(row["context"], row["precision"]): [row[name]["peak_bytes"] for name in study.PASSES] for row in rows}

    study.workspaces()
    peaks(settings[:1])  # the products of a process's first step make cuBLAS's workspaces
    assert peaks(settings) == peaks(settings[::-1])
