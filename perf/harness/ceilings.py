"""What the device can do at most, measured, and the physical floor that follows from it.

A time below the floor is an error of the measurement, never a record. Either the time is wrong, or the ceilings were
measured while the device was slow (its clocks, another tenant): whoever holds a time to the floor measures what that is
made of again before refusing.
"""

import time
from collections.abc import Collection
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

COPY = "copy"
"""The kind of ceiling that bounds bytes; the others are the dtypes of matmuls."""

RESTS_S = (0.0, 0.2, 0.5)
"""Before each time that ceilings are measured again, until a time is no longer below the floor. Seconds."""

_REST_S = 0.01
"""Before a sample of its own: a GPU that pauses cools, and runs an 8192^3 matmul 7 % faster (H200)."""

_STOP = Stop(min_samples=10, max_samples=20, max_seconds=0.2)


def measure(clock: Clock, kinds: Collection[str] | None = None) -> dict[str, Any]:
    """Best matmul rate per dtype (FLOP/s) and best copy rate (bytes read + written, per second) of this process.

    On a CPU by calls of 2 ms, some of which fit between two interruptions however busy the machine is. With `kinds`,
    the dtypes of matmuls or `COPY`, only these, by as many samples one by one, each after a rest, as in a row.
    """
    on_gpu = not isinstance(clock, WallClock)
    sizes = {"bfloat16": 8192, "float16": 8192, "float32": 8192} if on_gpu else {"float32": 512}
    device = "cuda" if on_gpu else "cpu"
    wanted, one_by_one = (sizes.keys() | {COPY}, False) if kinds is None else (kinds, True)
    rates = {
        dtype: 2 * n**3 / _best(clock, _peak_matmul(n, dtype, device), one_by_one)
        for dtype, n in sizes.items()
        if dtype in wanted
    }
    found: dict[str, Any] = {"matmul_flops_per_s": rates}
    if COPY in wanted:
        elements = 2**28 if on_gpu else 2**22
        found["copy_bytes_per_s"] = 2 * 4 * elements / _best(clock, copy(elements, device), one_by_one)
    return found


def floor_s(floor: Floor, ceilings: dict[str, Any], cache: Cache, l2_bytes: int, slack: float = SLACK) -> float:
    """The least seconds that this much work can take on a device with these ceilings.

    With a cold cache every byte read comes from memory. What is written may still sit in L2 when the clock stops.
    """
    return max(_least_s(floor, ceilings, cache, l2_bytes, slack).values(), default=0.0)


def undercut(
    fastest_s: float, floor: Floor, ceilings: dict[str, Any], cache: Cache, l2_bytes: int, slack: float = SLACK
) -> set[str]:
    """The kinds of ceilings by which `fastest_s` is impossible: as `measure` takes them."""
    return {kind for kind, least_s in _least_s(floor, ceilings, cache, l2_bytes, slack).items() if fastest_s < least_s}


def _least_s(floor: Floor, ceilings: dict[str, Any], cache: Cache, l2_bytes: int, slack: float) -> dict[str, float]:
    """By the kind of ceiling."""
    found = {}
    if rate := ceilings["matmul_flops_per_s"].get(floor.matmul_dtype):
        found[floor.matmul_dtype] = floor.flops / rate / slack
    if cache == "cold":
        moved = floor.bytes_read + max(0.0, floor.bytes_written - l2_bytes)
        found[COPY] = moved / ceilings["copy_bytes_per_s"] / slack
    return found


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


def _best(clock: Clock, work: Workload, one_by_one: bool) -> float:
    work.check()
    clock.warm_up(work)
    samples_s = visit(clock, work, "warm", _STOP).samples_s
    for _ in samples_s.copy() if one_by_one else ():
        time.sleep(_REST_S)
        samples_s += clock.batch(work, "warm", 1)
    return min(samples_s)
