"""Controls and unchanged machine code that move between the arms invalidate a report; chance does not."""

import pytest

from perf.gate.evidence import Outcome
from perf.gate.judge import judge
from tests.gate.made_evidence import evidence, rows, word_of


def controls(count=6, **options):
    return [evidence(f"control {i}", is_control=True, **options) for i in range(count)]


def test_controls_have_no_verdict_and_hold():
    judgement = judge([*rows(), *controls()])
    assert judgement.contaminated == ""
    assert not any("control" in verdict.key for verdict in judgement.verdicts)


def test_a_control_that_moved_voids_the_report():
    judgement = judge([*rows(), *controls(), evidence("copy", 0.02, is_control=True)])
    assert "attention.FlashAttention('copy')" in judgement.contaminated
    assert "+2.0 %" in judgement.contaminated
    assert judgement.exit_status == 2


def test_a_control_that_may_have_moved_by_chance_voids_nothing():
    assert (
        judge([*rows(), *controls(), evidence("copy", 0.0125, sd=0.005, processes=3, is_control=True)]).contaminated
        == ""
    )


def test_controls_that_moved_a_little_all_together_void_the_report():
    judgement = judge([*rows(), *controls(change=-0.008)])
    assert "6 controls" in judgement.contaminated
    assert judge([*rows(), *controls(change=-0.004)]).contaminated == ""


def test_controls_of_identical_code_hardly_ever_void_a_report():
    noisy = {"sd": 0.008, "effect": 0.003}
    voided = [judge([*rows(5), *controls(seed=seed, **noisy)]).contaminated for seed in range(40)]
    assert sum(map(bool, voided)) <= 2


KERNEL = ("attention_forward", 1, 1000.0)

COMPILED = {"name": "attention_forward", "registers": 168, "spills": 0, "shared_bytes": 49152, "sass": "ab"}


def same_code(name, change=0.0, **options):
    arm = Outcome("ok", peak_bytes=1, kernels=(KERNEL,), triton_kernels=(COMPILED,))
    return evidence(name, change, base=arm, head=arm, **options)


def test_rows_of_the_same_code_that_move_void_the_report():
    same = [same_code(f"same {i}") for i in range(10)]
    moved = [same_code(f"moved {i}", 0.03) for i in range(4)]
    assert judge([*same, moved[0]]).contaminated == ""
    assert "4 of 14 rows" in judge([*same, *moved]).contaminated


def test_what_was_planted_around_the_same_code_voids_nothing():
    planted = [same_code(f"planted {i}", 0.03) for i in range(14)]
    for row in planted:
        row.planted = True
    judgement = judge([*planted, *controls()])
    assert judgement.contaminated == ""
    assert {(verdict.word, verdict.same_code) for verdict in judgement.verdicts if verdict.quantity == "time"} == {
        ("SLOWER", False)
    }


@pytest.mark.parametrize("options", [{"clock": "gpu_wall"}, {"kernel_us": 100.0}])
def test_the_same_kernels_may_be_waited_for_longer(options):
    arm = Outcome("ok", kernels=(("gemm", 1, options.pop("kernel_us", 1000.0)),))
    moved = [evidence(f"moved {i}", 0.05, base=arm, head=arm, **options) for i in range(6)]
    judgement = judge([*rows(**options), *moved])
    assert judgement.contaminated == ""
    got = word_of(judgement, "moved 0")
    assert (got.word, got.same_code) == ("SLOWER", True)
    assert "same machine code" in got.reason


def test_a_slower_row_says_which_kernel_it_was():
    arms = {
        "base": Outcome("ok", kernels=(KERNEL,), triton_kernels=(COMPILED,)),
        "head": Outcome(
            "ok",
            kernels=(("attention_forward", 1, 1050.0),),
            triton_kernels=(COMPILED | {"registers": 255, "spills": 12, "sass": "cd"},),
        ),
    }
    got = word_of(judge([*rows(), evidence("slow", 0.05, **arms)]), "slow")
    assert "attention_forward +50.0 µs" in got.reason


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        ([], "no control"),
        ([evidence("copy", is_control=True, trouble="it hung")], "it hung"),
        ([evidence("copy", is_control=True, base=None, head=None, processes=0)], "base and head"),
        ([evidence("copy", is_control=True, head=Outcome("wrong", "off"), processes=0)], "head: wrong: off"),
        ([evidence("copy", is_control=True)], ""),
    ],
)
def test_controls_without_a_time_are_named(control, reason):
    judgement = judge([*rows(), *control])
    assert reason in judgement.unwatched
    assert bool(reason) == bool(judgement.unwatched)


def test_controls_that_share_a_reason_say_it_once():
    missing = [evidence(f"copy {i}", is_control=True, trouble="it hung") for i in range(6)]
    assert judge([*rows(), *missing]).unwatched.count("it hung") == 1


def test_arms_that_fail_alike_say_it_once():
    lacking = Outcome("unavailable", "needs a GPU")
    row = evidence("copy", is_control=True, base=lacking, head=lacking, processes=0)
    assert judge([*rows(), row]).unwatched.count("needs a GPU") == 1
