"""A slow-down of known size, put into one arm on purpose: what a gate that finds nothing is worth, only it can tell."""

import dataclasses
import statistics
import time
from dataclasses import dataclass
from typing import Any, Literal

from perf.workloads.workload import Workload

KINDS = {"device": "on the device", "host": "on the host", "memory": "of memory"}
"""Each in words that follow a size."""

SPIN_CYCLES = 2_000_000  # 1 ms: long against the launch of the kernel that spins


@dataclass(frozen=True)
class Injection:
    """device: the device spins after the call. host: the host does. memory: bytes are held during the call."""

    kind: Literal["device", "host", "memory"]
    size: float
    """Share of the time of a call; of memory, bytes."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} was given; allowed: {', '.join(KINDS)}")

    @property
    def title(self) -> str:
        """ "2 % on the device"."""
        size = f"{self.size / 2**20:g} MiB" if self.kind == "memory" else f"{100 * self.size:g} %"
        return f"{size} {KINDS[self.kind]}"

    def enlarged(self, work: Workload, device: str) -> Workload:
        """`work` holding the bytes during its call; as it is, if it is not memory that is injected."""
        if self.kind != "memory":
            return work
        run = work.run

        def holding() -> Any:
            held = _bytes(int(self.size), device)
            result = run()
            del held
            return result

        return dataclasses.replace(work, run=holding)

    def slowed(self, work: Workload, seconds: float, device: str) -> Workload:
        """`work`, whose call takes `seconds`, with the time at its end; as it is, if it is memory that is injected."""
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
    """A kernel that spins for so long, launch included, at the clock at which the device spins now.

    A kernel more costs about a microsecond before it does anything; where that alone is more than `seconds`, it is what
    is added.
    """
    import torch

    def median_s(*cycles: int) -> float:
        taken = []
        for _ in range(9):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(SPIN_CYCLES)  # the host is ahead when the clock starts
            start.record()
            for count in cycles:
                torch.cuda._sleep(count)
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end) * 1e-3)
        return statistics.median(taken)

    one_s = median_s(SPIN_CYCLES)
    launch_s = max(median_s(SPIN_CYCLES, 1) - one_s, 0.0)
    cycles = max(int((seconds - launch_s) * SPIN_CYCLES / one_s), 1)
    return lambda: torch.cuda._sleep(cycles)
