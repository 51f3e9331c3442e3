"""The study of checkpoints: a row for every k and mode, and the best k of 2026's xl."""

import pytest

from cs336_systems.configs import Checkpointing
from perf.studies import checkpointing as study
from perf.studies.lm import Setting, predicted_bytes, training_of
from perf.workloads import transformer_state
from perf.workloads.workload import Unavailable
from tests.studies.running import invoke, run_study

XL = Setting("2.7B", 2048, 4, "fp32", "eager", "triton")


def test_every_k_and_mode_has_a_row_and_a_sentence(tmp_path):
    tiny = ["--size", "tiny", "--context", "8", "--batch", "1", "--steps", "2", "--warm-up", "0"]
    rows, said = run_study(tmp_path, "checkpointing", *tiny)
    assert [row["status"] for row in rows] == ["ok"] * len(rows)
    ways = [(row["every"], row["mode"], row["offload"]) for row in rows]
    one = [(1, mode, offload) for mode in ("nested", "selective") for offload in (False, True)]
    assert ways == [(None, "groups", False), (1, "groups", False), (2, "groups", False), (1, "groups", True), *one]
    none, single, both, *_ = rows
    assert (none["recomputed"], single["recomputed"], both["recomputed"]) == (0, 1, 0)
    assert none["flops"] == both["flops"] < single["flops"]
    assert single["predicted_bytes"] <= none["predicted_bytes"] == both["predicted_bytes"]
    assert "the least peak that is predicted has k = " in said
    assert (tmp_path / "checkpointing-tiny-8-fp32.png").stat().st_size < 200_000


def test_one_layer_is_the_best_group_of_the_courses_xl():
    """Its layer keeps 25 times its input. Nesting keeps less, but the peak comes when no lower input is left."""
    rows = [study.plan(each) | {"predicted_bytes": predicted_bytes(each)} | each.axes() for each in study.ways(XL, ())]
    peaks = {study.named(row): row["predicted_bytes"] for row in rows}
    groups = [peaks[f"k = {k}"] for k in range(1, 33)]
    assert min(peaks.values()) == peaks["nested, k = 1"] == groups[0]
    kept = {study.named(row): row["kept_bytes"] for row in rows}
    assert kept["k = 1"] - kept["nested, k = 1"] == 30 * 4 * 4 * 2048 * 2560  # inputs of the groups but the first
    assert groups == sorted(groups)
    assert groups[31] == peaks["none"]
    assert "has k = 1" in next(study.answers([row | {"status": "ok"} for row in rows]))
    for row in rows:  # no sentence needs another row
        list(study.answers([row]))
        list(study.answers([each for each in rows if each is not row]))


def test_time_is_predicted_by_the_flops_of_the_cheapest_that_ran():
    cheap, dear, _, failed, *_ = (study.plan(each) for each in study.ways(XL, (1,)))
    rows = [failed, dear | {"step_s": [3.0]}, cheap | {"step_s": [2.0, 1.0, 9.0]}]
    assert study.predicted_seconds(rows, dear) == pytest.approx(2.0 * dear["flops"] / cheap["flops"])
    assert study.predicted_seconds([failed], dear) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "bf16_weights"], "'bf16_weights' is not one of"),
        (["--every", "0"], "Invalid value for '--every'"),
    ],
)
def test_what_cannot_be_studied_is_one_clear_line(arguments, message):
    done = invoke("checkpointing", "--size", "tiny", *arguments)
    assert done.exit_code == 2
    assert message in done.output.splitlines()[-1]


def test_an_older_commit_checkpoints_single_layers_or_says_that_it_cannot():
    def older(config, context_length, attention, *, checkpointed=False):
        return checkpointed

    known = transformer_state._known
    assert known(older, {}) == known(older, {"checkpoint_every": None}) == {}
    single = {"checkpoint_every": 1, "checkpoint_mode": "groups", "checkpoint_offload": False}
    assert known(older, single) == {"checkpointed": True}
    for other in ({"checkpoint_every": 2}, single | {"checkpoint_mode": "nested"}):
        with pytest.raises(Unavailable, match="this commit cannot checkpoint with"):
            known(older, other)
    setting = Setting("tiny", 8, 1, "fp32", "eager", "reference", checkpoint_every=2, checkpoint_mode="nested")
    assert training_of(setting).train.model.checkpointing == Checkpointing(2, "nested")
