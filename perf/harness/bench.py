"""A study's own stopwatch: it returns no time of work that differs from its oracle, and none below the floor."""

import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from perf.harness import clock
from perf.harness.case import Cache
from perf.harness.clock import Clock, Stop
from perf.harness.comparison import Comparer, Held, Turns
from perf.harness.instruments import Instruments
from perf.harness.measure import pin_package
from perf.harness.working_tree import ROOT
from perf.workloads.workload import Floor, Workload


class Laps(NamedTuple):
    """Steps from the first one on, part by part."""

    seconds: list[dict[str, float]]
    peak_bytes: int | None
    """Peak of the allocated bytes during all steps; None on a CPU."""


class Bench(Comparer):
    """A measuring process for questions that are no case of the suite.

    Work is checked with `check`, before its first sample; `first_visit` and `laps`, which ask about first calls, check
    it after the last. Every sample is held to the floor. Raises `WrongResult` and `TooFast`.
    """

    def __init__(self, device_kind: str):
        pin_package(ROOT)
        super().__init__(Instruments(device_kind))
        self.instruments.open()
        self._checked: list[weakref.ref[Workload]] = []

    def check(self, work: Workload) -> float:
        """Run the work once and compare it with its oracle; returns the error found."""
        self._run_once(work)
        return self._check(work)

    def _check(self, work: Workload) -> float:
        error = super()._check(work)
        self._checked.append(weakref.ref(work))
        return error

    def batch(self, clock_: Clock, work: Workload, cache: Cache, count: int) -> list[float]:
        """Call `Clock.batch` on checked work."""
        self._require_checked(work)
        return self.require_above_floor(clock_.batch(work, cache, count), work, cache)

    def visit(self, clock_: Clock, work: Workload, cache: Cache, stop: Stop) -> list[float]:
        """Call `clock.visit` on checked work."""
        self._require_checked(work)
        return self.require_above_floor(clock.visit(clock_, work, cache, stop).samples_s, work, cache)

    def sample_in_turn(self, held: Held, cache: Cache, count: int) -> Turns:
        """Take `count` samples of each arm in turn, of checked work."""
        for _, work in held.values():
            self._require_checked(work)
        return super().sample_in_turn(held, cache, count)

    def first_visit(
        self, make: Callable[[], Workload], clock_: Clock, cache: Cache, stop: Stop
    ) -> tuple[float, list[float]]:
        """Wall seconds of making the work and of its first call, which may compile; then the samples of a visit."""
        begin = time.perf_counter()
        work = make()
        work.prepare()
        work.run()
        self.instruments.synchronize()
        first_s = time.perf_counter() - begin
        clock_.warm_up(work)
        samples_s = clock.visit(clock_, work, cache, stop).samples_s
        self.check(work)
        return first_s, self.require_above_floor(samples_s, work, cache)

    def laps(self, work: Workload, count: int) -> Laps:
        """Wall seconds of each of the work's parts, `count` times from now on, the device at rest between any two."""
        import torch

        on_gpu = self.instruments.device == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        seconds = [self._lap(work) for _ in range(count)]
        peak_bytes = torch.cuda.max_memory_allocated() if on_gpu else None
        self.check(work)
        for name, part in work.parts.items():
            self.require_above_floor([lap[name] for lap in seconds], part.floor, "warm")
        return Laps(seconds, peak_bytes)

    def _lap(self, work: Workload) -> dict[str, float]:
        work.prepare()
        self.instruments.synchronize()
        found = {}
        for name, part in work.parts.items():
            begin = time.perf_counter()
            part.run()
            self.instruments.synchronize()
            found[name] = time.perf_counter() - begin
        return found

    def require_above_floor(self, samples_s: list[float], to: Workload | Floor, cache: Cache) -> list[float]:
        """Return `samples_s`, if none of them is below the floor."""
        self.instruments.require_above_floor(samples_s, to, cache)
        return samples_s

    def _require_checked(self, work: Workload) -> None:
        assert any(work is one() for one in self._checked), "work is timed that nobody has checked"
