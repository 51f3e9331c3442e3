"""A first call is timed in a process of its own, in which nothing has been compiled."""

import textwrap

import pytest

from perf.harness.case import Case
from perf.harness.first_call import CACHES, FirstCallClock
from perf.workloads.workload import Floor, Workload
from tests.throwaway import write_attention

PARAMS = {"seq_len": 16, "d": 16, "dtype": "float32", "mode": "forward", "impl": "pytorch"}
CASE = Case("test.FirstCall", "attention", PARAMS, "cpu", "first_call", "cold")
IDLE = Workload(run=lambda: None, check=lambda: 0.0, floor=Floor())


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Writes a `cs336_systems` whose attention does `body`."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(body):
        source = f"""
            import os, sys, torch

            class FlashAttentionPyTorch:
                @staticmethod
                def apply(q, k, v, is_causal):
                    {body}
        """
        write_attention(tmp_path, flash_pytorch=textwrap.dedent(source))
        return tmp_path

    return write


def test_every_sample_is_a_new_process_with_caches_of_its_own(checkout, tmp_path):
    log = tmp_path / "log"
    root = checkout(
        f"print(os.getpid(), *(os.environ[name] for name in {CACHES}), file=open({str(log)!r}, 'a')); return q"
    )
    samples = FirstCallClock(CASE, root).batch(IDLE, "cold", 2)
    assert len(samples) == 2
    assert min(samples) > 0
    first, second = (set(line.split()) for line in log.read_text().splitlines())
    assert len(first) == 1 + len(CACHES)
    assert not first & second


def test_a_first_call_that_fails_says_why(checkout):
    root = checkout("raise OSError('no compiler here')")
    with pytest.raises(RuntimeError, match="OSError: no compiler"):
        FirstCallClock(CASE, root).batch(IDLE, "cold", 1)


def test_a_first_call_is_cold(tmp_path):
    with pytest.raises(ValueError, match="'warm' was given"):
        FirstCallClock(CASE, tmp_path).batch(IDLE, "warm", 1)
