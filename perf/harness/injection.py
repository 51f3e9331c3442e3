"""Injected slow-downs of known size, for self-tests of the gate: they show which slow-downs it detects."""

import dataclasses
import statistics
import time
from dataclasses import dataclass
from typing import Any, Literal

from perf.workloads.workload import Workload

KINDS = {"device": "on the device", "host": "on the host", "memory": "of memory"}
"""Kind -> words that follow a size."""

SPIN_CYCLES = 2_000_000  # 1 ms, much longer than the launch of the spinning kernel


@dataclass(frozen=True)
class Injection:
    """A slow-down: the device or the host spins after the call, or bytes stay allocated during the call."""

    kind: Literal["device", "host", "memory"]
    size: float
    """Fraction of a call's time; for memory, bytes."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} was given; allowed: {', '.join(KINDS)}")

    @property
    def title(self) -> str:
        """Return "2 % on the device"."""
        size = f"{self.size / 2**20:g} MiB" if self.kind == "memory" else f"{100 * self.size:g} %"
        return f"{size} {KINDS[self.kind]}"

    def enlarged(self, work: Workload, device: str) -> Workload:
        """Return `work` with the bytes allocated during its call; unchanged unless the kind is memory."""
        if self.kind != "memory":
            return work
        run = work.run

        def with_ballast() -> Any:
            ballast = _bytes(int(self.size), device)
            result = run()
            del ballast
            return result

        return dataclasses.replace(work, run=with_ballast)

    def slowed(self, work: Workload, seconds: float, device: str) -> Workload:
        """Return `work`, a call of which takes `seconds`, with a spin after its call; unchanged for memory."""
        if self.kind == "memory":
            return work
        run = work.run
        extra = seconds * self.size
        spin = _device_spin(extra) if self.kind == "device" and device == "cuda" else _host_spin(extra)

        def slower() -> Any:
            result = run()
            spin()
            return result

        return dataclasses.replace(work, run=slower)


def _bytes(count: int, device: str) -> Any:
    import torch

    return torch.empty(count, dtype=torch.uint8, device=device)


def _host_spin(seconds: float) -> Any:
    def spin() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return spin


def _device_spin(seconds: float) -> Any:
    """Return a launch of a kernel that spins for `seconds`, launch included, at the device's current clock.

    An extra launch alone costs about a microsecond, which is the minimum that can be added.
    """
    import torch

    def median_s(*cycles: int) -> float:
        taken = []
        for _ in range(9):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(SPIN_CYCLES)  # lets the host queue the rest before the clock starts
            start.record()
            for count in cycles:
                torch.cuda._sleep(count)
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end) * 1e-3)
        return statistics.median(taken)

    spin_s = median_s(SPIN_CYCLES)
    launch_s = max(median_s(SPIN_CYCLES, 1) - spin_s, 0.0)
    cycles = max(int((seconds - launch_s) * SPIN_CYCLES / spin_s), 1)
    return lambda: torch.cuda._sleep(cycles)
