"""One visit to two commits at once, by the process that a gate talks to."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perf.harness.case import Case
from perf.harness.comparison import Rounds
from perf.harness.worker_process import WorkerProcess
from tests.throwaway import write_attention

ATTENTION = """
import torch


def scaled_dot_product_attention(q, k, v, is_causal=False):
    {before}
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(scores, dim=-1) @ v{after}
"""
CASE = Case(
    "smoke.SmokeAttention",
    "attention",
    {"seq_len": 64, "d": 16, "dtype": "float32", "mode": "forward", "impl": "reference"},
    "cpu",
    "wall",
    "warm",
)
Ask = Callable[..., dict[str, Any]]


GOOD = ("pass", "")  # what an attention does before and after

# Faults of the arms, by the sequence length: at any other, both are good.
WRONG, FAILS, LACKS_MEMORY, SLOPES, ROUNDS, CRASHES, SETS, READS = range(65, 73)
BASE = (
    f"if q.shape[-2] == {LACKS_MEMORY}: raise torch.OutOfMemoryError('none left')\n"
    f"    if q.shape[-2] == {SETS} and torch.is_anomaly_enabled(): raise RuntimeError('not set here')",
    f" * (1.01 if q.shape[-2] == {WRONG} else 1)",
)
HEAD = (
    f"if q.shape[-2] == {FAILS}: raise RuntimeError('no such\\nluck')\n"
    f"    if q.shape[-2] == {CRASHES}: import os; os.kill(os.getpid(), 11)\n"
    f"    if q.shape[-2] == {READS}: input()\n"
    f"    if q.shape[-2] == {SETS} and not torch.is_anomaly_enabled():\n"
    "        if hasattr(torch, 'set_once'): raise RuntimeError('no longer set')\n"
    "        torch.set_once = torch.autograd.set_detect_anomaly(True)",
    f" / (1.02 if q.shape[-2] == {SLOPES} else 1) * (1.00002 if q.shape[-2] == {ROUNDS} else 1)",
)
OF_HEAD_ALONE = """
from .reference import scaled_dot_product_attention


class FlashAttentionPyTorch:
    apply = staticmethod(scaled_dot_product_attention)
"""


def of_length(seq_len: int, **changes: Any) -> Case:
    """The case at another length."""
    return dataclasses.replace(CASE, params=CASE.params | {"seq_len": seq_len} | changes)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ask one process for both arms, in every test; after a crash it is started again."""
    folder = tmp_path_factory.mktemp("arms")
    base, head = (ATTENTION.format(before=before, after=after) for before, after in (BASE, HEAD))
    write_attention(folder / "base", reference=base)
    write_attention(folder / "head", reference=head, flash_pytorch=OF_HEAD_ALONE)
    process = WorkerProcess("cpu", folder / "base", folder / "head")

    def ask(case: Case = CASE, limit_s: float = 250.0, **changes: Any) -> dict[str, Any]:
        if not process.alive():
            process.stop()
            process.start()
        request = {"arms": ["base", "head"], "first": True, "ceilings": {}}
        return process.ask({"case": case.to_json()} | request | changes, limit_s)

    yield ask
    process.stop()


def test_two_good_arms_are_sampled_pair_by_pair(ask: Ask) -> None:
    assert ask()["differences"] == []
    for order in (["base", "head"], ["head", "base"]):
        reply = ask(arms=order, first=False)
        assert (reply["status"], reply["throttled"]) == ("ok", 0)
        assert len(reply["base_ns"]) == len(reply["head_ns"]) >= 2
        assert all(ns > 0 for ns in reply["base_ns"] + reply["head_ns"])


@pytest.mark.parametrize(
    ("bad", "seq_len", "status", "reason"),
    [
        ("base", WRONG, "wrong", "out differs from float64 by 1.0e-02"),
        ("head", FAILS, "error", "RuntimeError: no such"),
        ("base", LACKS_MEMORY, "out_of_memory", "none left"),
        ("head", READS, "error", "EOFError"),
    ],
)
def test_one_bad_arm_has_its_reason_and_the_other_none(
    ask: Ask, bad: str, seq_len: int, status: str, reason: str
) -> None:
    reply = ask(of_length(seq_len))
    other = {"base": "head", "head": "base"}[bad]
    assert reply[bad]["status"] == status
    assert reply[bad]["reason"].startswith(reason)
    assert reply[other]["status"] == "ok"
    assert "base_ns" not in reply


def test_what_one_commit_lacks_is_unavailable_there_alone(ask: Ask) -> None:
    reply = ask(of_length(64, impl="pytorch"))
    assert reply["base"]["status"] == "unavailable"
    assert reply["base"]["reason"].startswith("this commit has no module cs336_systems.attention.flash_pytorch")
    assert reply["head"]["status"] == "ok"
    assert "base_ns" not in reply


def test_a_head_whose_output_is_2_percent_off_in_bfloat16_is_wrong(ask: Ask) -> None:
    reply = ask(of_length(SLOPES, dtype="bfloat16"))
    assert (reply["base"]["status"], reply["head"]["status"]) == ("ok", "wrong")
    assert reply["head"]["reason"].startswith("the slope of out against float64 is off by 2.0e-02")
    assert "base_ns" not in reply


def test_right_results_that_differ_by_more_than_rounding_are_said(ask: Ask) -> None:
    reply = ask(of_length(ROUNDS))
    assert reply["status"] == "ok" and reply["base_ns"]
    ((name, difference, allowed),) = reply["differences"]
    assert name == "out" and 1e-5 == allowed < difference == pytest.approx(2e-5, rel=0.1)
    assert "differences" not in ask(of_length(ROUNDS), first=False), "said once"


@pytest.mark.parametrize("arms", [["base", "head"], ["head", "base"]])
def test_what_head_sets_for_its_process_is_set_for_head_alone(ask: Ask, arms: list[str]) -> None:
    reply = ask(of_length(SETS), arms=arms)
    assert [reply[arm]["reason"] for arm in arms] == ["", ""]
    assert (reply["status"], reply["reason"]) == ("ok", "") and reply["base_ns"]


def test_a_case_of_memory_alone_gets_no_times(ask: Ask) -> None:
    assert "base_ns" not in ask(dataclasses.replace(CASE, timed=False))


def test_an_injected_slow_down_lies_in_the_head_alone(ask: Ask) -> None:
    """A call that is twenty times as long, so that no noise of this machine hides it."""
    reply = ask(injection={"kind": "host", "size": 19.0})
    assert min(reply["head_ns"]) > 2 * min(reply["base_ns"])


@pytest.mark.parametrize(("pair_s", "number"), [(1e-4, 40), (0.025, 10), (0.04, 6), (0.2, 2), (10.0, 2)])
def test_a_visit_takes_as_many_pairs_as_fit(pair_s: float, number: int) -> None:
    assert Rounds().number(pair_s) == number


def test_an_injected_slow_down_reaches_the_ranks_of_the_head_alone(ask: Ask) -> None:
    case = Case("smoke.SmokeCollectives", "collectives", {"world_size": 1, "megabytes": 1}, "cpu", "ranks", "warm")
    reply = ask(case, injection={"kind": "host", "size": 19.0})
    assert reply["status"] == "ok", reply
    assert min(reply["head_ns"]) > 2 * min(reply["base_ns"])


def test_a_crash_is_told_apart_by_asking_for_one_arm(ask: Ask) -> None:
    assert ask(of_length(CRASHES), arms=["base"])["base"]["status"] == "ok"
    assert ask(of_length(CRASHES))["status"] == "crashed"
