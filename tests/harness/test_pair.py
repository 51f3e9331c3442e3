"""One visit to two commits at once, by the process that a gate talks to."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from perf.harness.case import Case
from perf.harness.comparison import Rounds
from perf.harness.worker_process import WorkerProcess

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


GOOD = ("pass", "")


@contextmanager
def started(folder: Path, base: tuple[str, str] | None, head: tuple[str, str] | None) -> Iterator[Ask]:
    """Start a process for two packages, each given as what its attention does before and after."""
    checkouts = []
    for name, code in (("base", base), ("head", head)):
        package = folder / name / "cs336_systems"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        if code is not None:
            (package / "attention").mkdir()
            (package / "attention" / "__init__.py").write_text("")
            text = ATTENTION.format(before=code[0], after=code[1])
            (package / "attention" / "reference.py").write_text(text)
        checkouts.append(folder / name)
    process = WorkerProcess("cpu", *checkouts)
    process.start()

    def ask(case: Case = CASE, limit_s: float = 250.0, **changes: Any) -> dict[str, Any]:
        request = {"arms": ["base", "head"], "first": True, "ceilings": {}, "pairs": {"most": 6, "seconds": 1e9}}
        return process.ask({"case": case.to_json()} | request | changes, limit_s)

    yield ask
    process.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Callable[..., Ask]]:
    """Start a process for two packages."""
    with ExitStack() as stack:
        yield lambda base, head: stack.enter_context(started(tmp_path, base, head))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Two good arms, in one process for all who ask for it."""
    with started(tmp_path_factory.mktemp("good"), GOOD, GOOD) as ask:
        yield ask


def test_two_good_arms_are_sampled_pair_by_pair(good: Ask) -> None:
    assert good()["differences"] == []
    for order in (["base", "head"], ["head", "base"]):
        reply = good(arms=order, first=False)
        assert (reply["status"], reply["throttled"]) == ("ok", 0)
        assert len(reply["base_ns"]) == len(reply["head_ns"]) == 6
        assert all(ns > 0 for ns in reply["base_ns"] + reply["head_ns"])


@pytest.mark.parametrize(
    ("bad", "fault", "status", "reason"),
    [
        ("base", ("pass", " * 1.01"), "wrong", "out differs from float64 by 1.0e-02"),
        ("head", ("raise RuntimeError('no such\\nluck')", ""), "error", "RuntimeError: no such"),
        ("base", ("raise torch.OutOfMemoryError('none left')", ""), "out_of_memory", "none left"),
        ("base", None, "unavailable", "this commit has no module cs336_systems.attention"),
    ],
)
def test_one_bad_arm_has_its_reason_and_the_other_none(
    pair: Callable[..., Ask], bad: str, fault: Any, status: str, reason: str
) -> None:
    ask = pair(fault, GOOD) if bad == "base" else pair(GOOD, fault)
    reply = ask()
    other = {"base": "head", "head": "base"}[bad]
    assert reply[bad]["status"] == status
    assert reply[bad]["reason"].startswith(reason)
    assert reply[other]["status"] == "ok"
    assert "base_ns" not in reply


HALF = dataclasses.replace(CASE, params=CASE.params | {"dtype": "bfloat16"})


def test_a_head_whose_output_is_2_percent_off_in_bfloat16_is_wrong(pair: Callable[..., Ask]) -> None:
    reply = pair(GOOD, ("pass", " / 1.02"))(HALF)
    assert (reply["base"]["status"], reply["head"]["status"]) == ("ok", "wrong")
    assert reply["head"]["reason"].startswith("the slope of out against float64 is off by 2.0e-02")
    assert "base_ns" not in reply


def test_right_results_that_differ_by_more_than_rounding_are_said(pair: Callable[..., Ask]) -> None:
    ask = pair(GOOD, ("pass", " * 1.00002"))
    reply = ask()
    assert reply["status"] == "ok" and reply["base_ns"]
    ((name, difference, allowed),) = reply["differences"]
    assert name == "out" and 1e-5 == allowed < difference == pytest.approx(2e-5, rel=0.1)
    assert "differences" not in ask(first=False), "said once"


def test_a_crash_is_told_apart_by_asking_for_one_arm(pair: Callable[..., Ask]) -> None:
    ask = pair(GOOD, ("import os; os.kill(os.getpid(), 11)", ""))
    assert ask(arms=["base"])["base"]["status"] == "ok"
    assert ask()["status"] == "crashed"


def test_a_case_of_memory_alone_gets_no_times(good: Ask) -> None:
    assert "base_ns" not in good(dataclasses.replace(CASE, timed=False))


def test_an_injected_slow_down_lies_in_the_head_alone(good: Ask) -> None:
    """A call that is twenty times as long, so that no noise of this machine hides it."""
    reply = good(injection={"kind": "host", "size": 19.0})
    assert min(reply["head_ns"]) > 2 * min(reply["base_ns"])


@pytest.mark.parametrize(("pair_s", "number"), [(1e-4, 40), (0.025, 10), (0.04, 6), (0.2, 2), (10.0, 2)])
def test_a_visit_takes_as_many_pairs_as_fit(pair_s: float, number: int) -> None:
    assert Rounds().number(pair_s) == number


def test_an_injected_slow_down_reaches_every_rank_of_the_head_alone(good: Ask) -> None:
    case = Case("smoke.SmokeCollectives", "collectives", {"world_size": 2, "megabytes": 1}, "cpu", "ranks", "warm")
    reply = good(case, injection={"kind": "host", "size": 19.0})
    assert reply["status"] == "ok", reply
    assert min(reply["head_ns"]) > 2 * min(reply["base_ns"])
