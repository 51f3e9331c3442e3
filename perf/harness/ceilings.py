"""What the device can do at most, measured, and the physical floor that follows from it.

A time below the floor is an error of the measurement, never a record.
"""

from dataclasses import replace
from typing import Any

from perf.harness.case import Cache
from perf.harness.clock import Clock, Stop, WallClock, visit
from perf.workloads.controls import copy, matmul
from perf.workloads.workload import Floor, Workload

SLACK = 1.05
"""A rate may beat the best one seen here by this much before it counts as impossible."""

CPU_SLACK = 2.0
"""On a CPU other programs take part of what the ceilings were measured with."""

_STOP = Stop(min_samples=10, max_samples=20, max_seconds=0.2)


def measure(clock: Clock) -> dict[str, Any]:
    """Best matmul rate per dtype (FLOP/s) and best copy rate (bytes read + written, per second) of this process.

    On a CPU by calls of 2 ms, some of which fit between two interruptions however busy the machine is.
    """
    on_gpu = not isinstance(clock, WallClock)
    sizes = {"bfloat16": 8192, "float16": 8192, "float32": 8192} if on_gpu else {"float32": 512}
    device = "cuda" if on_gpu else "cpu"
    rates = {dtype: 2 * n**3 / _best(clock, _peak_matmul(n, dtype, device)) for dtype, n in sizes.items()}
    elements = 2**28 if on_gpu else 2**22
    copy_s = _best(clock, copy(elements, device))
    return {"matmul_flops_per_s": rates, "copy_bytes_per_s": 2 * 4 * elements / copy_s}


def floor_s(floor: Floor, ceilings: dict[str, Any], cache: Cache, l2_bytes: int, slack: float = SLACK) -> float:
    """The least seconds that this much work can take on a device with these ceilings.

    With a cold cache every byte read comes from memory. What is written may still sit in L2 when the clock stops.
    """
    rate = ceilings["matmul_flops_per_s"].get(floor.matmul_dtype)
    least = floor.flops / rate if rate else 0.0
    if cache == "cold":
        moved = floor.bytes_read + max(0.0, floor.bytes_written - l2_bytes)
        least = max(least, moved / ceilings["copy_bytes_per_s"])
    return least / slack


class TooFast(Exception):
    """A sample below what the hardware allows: the measurement is wrong, whatever the code did."""


def hold_to_floor(
    fastest_s: float,
    floor: Floor,
    measured_ceilings: dict[str, Any],
    cache: Any,
    l2_bytes: int,
    slack: float = SLACK,
) -> None:
    """Raise `TooFast` if `fastest_s` is less than this device can need for this much work."""
    least = floor_s(floor, measured_ceilings, cache, l2_bytes, slack)
    if fastest_s < least:
        raise TooFast(
            f"{fastest_s * 1e6:.2f} us is below the physical floor of {least * 1e6:.2f} us "
            f"({floor.flops:.3g} FLOPs, {floor.bytes_read + floor.bytes_written:.3g} bytes)"
        )


def _peak_matmul(n: int, dtype: str, device: str) -> Workload:
    """The product at the best rate that the device has for operands of this dtype: tf32 for float32."""
    import torch

    work = matmul(n, dtype, device)

    def run() -> None:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            work.run()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return replace(work, run=run)


def _best(clock: Clock, work: Workload) -> float:
    work.check()
    clock.warm_up(work)
    return min(visit(clock, work, "warm", _STOP).samples_s)
