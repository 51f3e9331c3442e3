"""Measured peak rates of the device (ceilings), and the minimum time of a workload (its floor) that follows from them.

A time below the floor is a measurement error, never a record. Either the time is wrong, or the ceilings were measured
while the device was slow (its clocks, another tenant). Callers therefore measure the violated ceilings again before
they refuse a time.
"""

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from perf.harness.case import Cache
from perf.harness.clock import Clock, HostClock, Stop, WallClock, visit
from perf.harness.cuda_clocks import CudaHostClock
from perf.workloads.controls import copy, empty, matmul
from perf.workloads.workload import Floor, Workload

SLACK = 1.05
"""Factor by which a rate may exceed the measured ceiling before it counts as impossible."""

CPU_SLACK = 2.0
"""`SLACK` on a CPU, where other programs slow the measurement of the ceilings."""

COPY = "copy"
"""The kind of ceiling that bounds bytes; the other kinds are `LAUNCH` and the dtypes of matmuls."""

LAUNCH = "launch"
"""The kind of ceiling that bounds launches."""

RESTS_S = (0.0, 0.2, 0.5)
"""Pauses before each new measurement of the ceilings, in seconds."""

_REST_S = 0.01
"""Pause before a single sample: a GPU that pauses cools, and runs an 8192^3 matmul 7 % faster (H200)."""

_STOP = Stop(min_samples=10, max_samples=20, max_seconds=0.2)


def measure(clock: Clock, kinds: Collection[str] | None = None) -> dict[str, Any]:
    """Measure the best matmul rate per dtype (FLOP/s), copy rate (bytes read + written) and launch rate, per second.

    `kinds` restricts the measurement to these dtypes of matmuls, `COPY` or `LAUNCH`, and adds as many single samples,
    each after a rest. A call takes 2 ms on a CPU: even on a busy machine some calls run uninterrupted.
    """
    on_gpu = not isinstance(clock, WallClock)
    sizes = {"bfloat16": 8192, "float16": 8192, "float32": 8192} if on_gpu else {"float32": 512}
    device = "cuda" if on_gpu else "cpu"
    selected, with_rests = (sizes.keys() | {COPY, LAUNCH}, False) if kinds is None else (kinds, True)
    rates = {
        dtype: 2 * n**3 / _best_s(clock, _peak_matmul(n, dtype, device), with_rests)
        for dtype, n in sizes.items()
        if dtype in selected
    }
    ceilings: dict[str, Any] = {"matmul_flops_per_s": rates}
    if COPY in selected:
        elements = 2**28 if on_gpu else 2**22
        ceilings["copy_bytes_per_s"] = 2 * 4 * elements / _best_s(clock, copy(elements, device), with_rests)
    if LAUNCH in selected:
        host = CudaHostClock() if on_gpu else HostClock()
        ceilings["launches_per_s"] = 1 / _best_s(host, empty(device), with_rests)
    return ceilings


def floor_s(floor: Floor, ceilings: dict[str, Any], cache: Cache, l2_bytes: int, slack: float = SLACK) -> float:
    """Return the minimum time of this much work on a device with these ceilings.

    With a cold cache every byte read comes from memory. Written bytes may still be in L2 when the clock stops.
    """
    return max(_min_s_by_kind(floor, ceilings, cache, l2_bytes, slack).values(), default=0.0)


def undercut(
    fastest_s: float, floor: Floor, ceilings: dict[str, Any], cache: Cache, l2_bytes: int, slack: float = SLACK
) -> set[str]:
    """Return the kinds of ceilings, as `measure` takes them, that `fastest_s` violates."""
    by_kind = _min_s_by_kind(floor, ceilings, cache, l2_bytes, slack)
    return {kind for kind, min_s in by_kind.items() if fastest_s < min_s}


def _min_s_by_kind(
    floor: Floor, ceilings: dict[str, Any], cache: Cache, l2_bytes: int, slack: float
) -> dict[str, float]:
    min_s = {}
    if rate := ceilings["matmul_flops_per_s"].get(floor.matmul_dtype):
        min_s[floor.matmul_dtype] = floor.flops / rate / slack
    if rate := ceilings.get("launches_per_s"):
        min_s[LAUNCH] = floor.launches / rate / slack
    if cache == "cold":
        moved = floor.bytes_read + max(0.0, floor.bytes_written - l2_bytes)
        min_s[COPY] = moved / ceilings["copy_bytes_per_s"] / slack
    return min_s


class TooFast(Exception):
    """A sample below the physical floor: a measurement error."""


def require_floor(
    fastest_s: float,
    floor: Floor,
    measured_ceilings: dict[str, Any],
    cache: Any,
    l2_bytes: int,
    slack: float = SLACK,
) -> None:
    """Raise `TooFast` if `fastest_s` is below the floor of this much work on this device."""
    min_s = floor_s(floor, measured_ceilings, cache, l2_bytes, slack)
    if fastest_s < min_s:
        raise TooFast(
            f"{fastest_s * 1e6:.2f} us is below the physical floor of {min_s * 1e6:.2f} us "
            f"({floor.flops:.3g} FLOPs, {floor.bytes_read + floor.bytes_written:.3g} bytes, {floor.launches} launches)"
        )


def _peak_matmul(n: int, dtype: str, device: str) -> Workload:
    """Return a matmul at the device's best rate for operands of this dtype: TF32 for float32."""
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


def _best_s(clock: Clock, work: Workload, with_rests: bool) -> float:
    work.check()
    clock.warm_up(work)
    samples_s = visit(clock, work, "warm", _STOP).samples_s
    for _ in samples_s.copy() if with_rests else ():
        time.sleep(_REST_S)
        samples_s += clock.batch(work, "warm", 1)
    return min(samples_s)
