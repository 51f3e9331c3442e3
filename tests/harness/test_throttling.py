"""Samples that a throttled GPU gave are dropped in pairs, and counted."""

from pathlib import Path
from typing import Any

import pytest

from perf.harness import device, pair
from perf.harness.bench import Bench
from perf.harness.case import ARMS, Case
from perf.harness.clock import WallClock
from perf.harness.comparison import Rounds
from perf.harness.measure import Spent
from perf.harness.pair import PairWorker
from perf.workloads.workload import Floor, Workload

ROOT = Path(__file__).parents[2]
CASE = Case("a.B", "controls", {}, "cpu", "wall", "warm")


class Counting(WallClock):
    """The n-th sample of the process takes n seconds."""

    call_s, taken = 0.0, 0

    def batch(self, work: Any, cache: Any, count: int, while_busy: Any = lambda: None) -> list[float]:
        samples = []
        for _ in range(count):
            Counting.taken += 1
            while_busy()
            samples.append(float(Counting.taken))
        return samples


class ThrottledAt:
    """NVML of a GPU that is throttled during one sample of the process."""

    def __init__(self, number: int):
        self._number = number

    def sm_mhz(self) -> int:
        return 1980

    def throttling(self) -> list[str]:
        return ["too hot"] if Counting.taken == self._number else []


class WithoutCheckouts(PairWorker):
    """A worker whose arms are empty work."""

    def _pin(self) -> str:
        return ""

    def _hold(self, *arguments: Any) -> Any:
        return Counting(), Workload(run=lambda: None, check=lambda: 0.0, floor=Floor())


@pytest.mark.parametrize(
    ("way", "throttled_at", "base", "head"),
    [
        ("_take_turns", 3, [1, 5, 8], [2, 6, 7]),
        ("_take_turns", 99, [1, 4, 5, 8], [2, 3, 6, 7]),
        ("_one_after_the_other", 3, [1, 7, 8], [4, 5, 6]),
        ("_one_after_the_other", 8, [1, 2, 7], [3, 4, 5]),
        ("_one_after_the_other", 99, [1, 2, 7, 8], [3, 4, 5, 6]),
    ],
)
def test_what_was_throttled_is_dropped_with_its_neighbour(
    way: str, throttled_at: int, base: list[int], head: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WithoutCheckouts("cpu", dict.fromkeys(ARMS, ROOT))
    worker.instruments.nvml = ThrottledAt(throttled_at)  # type: ignore[assignment]
    worker.instruments.ceilings = {"matmul_flops_per_s": {}}
    monkeypatch.setattr(Counting, "taken", 0)
    monkeypatch.setattr(Rounds, "number", lambda self, round_s: self.most)
    monkeypatch.setattr(pair, "PAIRS", Rounds(most=4))
    found = getattr(worker, way)(CASE, ARMS, None, Spent())
    assert [ns // 10**9 for ns in found["base_ns"]] == base
    assert [ns // 10**9 for ns in found["head_ns"]] == head
    assert found["throttled"] == (throttled_at < 99)


def test_a_study_drops_what_a_throttled_gpu_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "identity", lambda kind: {"uuid": "GPU-1", "l2_bytes": 1})
    monkeypatch.setattr(device.Nvml, "open", lambda uuid: ThrottledAt(3))
    monkeypatch.setattr(Counting, "taken", 0)
    bench = Bench("cuda")
    monkeypatch.setattr(bench.instruments, "synchronize", lambda: None)
    arms = {}
    for name in "ab":
        work = Workload(run=lambda: None, check=lambda: 0.0, floor=Floor())
        bench.check(work)
        arms[name] = Counting(), work
    assert bench.sample_in_turn(arms, "warm", 4).samples_s == {"a": [1, 5, 8], "b": [2, 6, 7]}
