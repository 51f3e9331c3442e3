"""Under which conditions the numbers of a page were taken: hardware, versions, clock, statistic, ceilings."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perf import units
from perf.harness.records import CaseResult, Session
from perf.site.ceiling import attained
from perf.site.wording import Quantity

_EFFORT = {True: "full run", False: "quick run: too few samples to compare by"}
CLOCKS = {
    "cuda_events": "CUDA events",
    "cuda_graph": "time per call in a CUDA graph of many calls",
    "device_busy": "time during which the GPU was busy",
    "gpu_wall": "wall clock until the GPU is done",
    "host": "host time until a call returns, minimum of up to 20 calls, with an idle GPU before each",
    "ranks": "the slowest rank, by CUDA events on each (wall clock on a CPU), all ranks starting together",
    "wall": "wall clock",
    "first_call": "wall clock of the first call in a fresh process with empty compiler caches",
}
_INTERVAL = "95 % of the median, from the spread between visits; at fewer than 3 from the samples alone"
_MEMORY = "peak of the requested bytes (harness 1 and 2: allocated bytes), in a separate pass"
_OF_CEILING = (
    "the minimum time at its session's ceilings, by arithmetic or by memory traffic (from warm caches only what L2 "
    "cannot hold), whichever is longer, over the time taken"
)
_CACHES = {"cold": "cold L2 (flushed before each sample)", "warm": "warm caches"}
_SOFTWARE = (
    ("torch", "PyTorch"),
    ("triton", "Triton"),
    ("cuda", "CUDA"),
    ("cudnn", "cuDNN"),
    ("python", "Python"),
)


def facts(results: Sequence[CaseResult], quantity: Quantity = "time") -> list[tuple[str, str]]:
    """Name and value of each condition. Where sessions differ, all values are named, of rates and dates the range."""
    sessions = list({result.session.id: result.session for result in results}.values())
    timed = [result for result in results if quantity == "time" and result.status == "ok" and result.samples_s]
    weighed = any(result.status == "ok" and result.peak_bytes is not None for result in results)
    ceilings = _ceilings(sessions) if any(attained(one, 1.0) is not None for one in timed) else ""
    starts = sorted(session.started_at.replace("T", " ")[:16] for session in sessions)
    found = [
        ("Hardware", _each(_hardware(session.device) for session in sessions)),
        ("Driver", _each(str(session.device.get("driver", "")) for session in sessions)),
        ("Software", _each(software(session.software) for session in sessions)),
        ("A time is", _method(timed)),
        ("Interval", _INTERVAL if timed else ""),
        ("Peak memory is", _MEMORY if weighed else ""),
        ("Ceilings", ceilings),
        ("Of ceiling", _OF_CEILING if ceilings else ""),
        ("Measured", f"{units.extent(starts)} UTC" if starts else ""),
        ("Harness", _each(f"version {session.harness}, {_EFFORT[session.effort == 'full']}" for session in sessions)),
    ]
    return [(name, value) for name, value in found if value]


def split(each: Sequence[list[tuple[str, str]]]) -> tuple[list[tuple[str, str]], list[list[tuple[str, str]]]]:
    """Facts that hold for everything, to be said once; and of each what is its own."""
    values: dict[str, set[str]] = {}
    for name, value in (fact for one in each for fact in one):
        values.setdefault(name, set()).add(value)
    common = {name: value for one in each for name, value in one if len(values[name]) == 1}
    return list(common.items()), [[fact for fact in one if fact[0] not in common] for one in each]


def _each(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))


def _hardware(device: dict[str, Any]) -> str:
    parts = [str(device.get("name", ""))]
    if device.get("memory_bytes"):
        parts.append(units.memory(device["memory_bytes"]))
    if device.get("sm_count"):
        parts.append(f"{device['sm_count']} SMs")
    if device.get("power_limit_w"):
        parts.append(f"{device['power_limit_w']} W")
    if device.get("threads"):
        parts.append(f"{device['threads']} threads")
    return ", ".join(parts)


def software(versions: dict[str, str]) -> str:
    """ "PyTorch 2.11.0, Triton 3.6.0": of the recorded versions, those that a number depends on."""
    return ", ".join(f"{name} {versions[key]}" for key, name in _SOFTWARE if versions.get(key))


def _method(timed: Sequence[CaseResult]) -> str:
    if not timed:
        return ""
    samples = units.extent(map(str, sorted(len(result.samples_s) for result in timed)))
    visits = units.extent(map(str, sorted(len(result.visits_s) for result in timed)))
    clocks = _each(CLOCKS.get(result.clock, result.clock) for result in timed)
    # A first call has an empty cache of another kind: its clock says which.
    caches = _each(_CACHES.get(result.cache, result.cache) for result in timed if result.clock != "first_call")
    return ", ".join(filter(None, (f"the median of {samples} samples in {visits} visits", clocks, caches)))


def dtype_label(dtype: str, session: Session) -> str:
    """Name a dtype with the arithmetic of its ceiling. A GPU multiplies float32 fastest as TF32."""
    return "float32 (TF32)" if dtype == "float32" and session.device.get("sm_count") else dtype


def _ceilings(sessions: Sequence[Session]) -> str:
    rates: dict[str, list[float]] = {}
    for session in sessions:
        for dtype, rate in session.ceilings.get("matmul_flops_per_s", {}).items():
            rates.setdefault(f"{dtype_label(dtype, session)} matmul", []).append(rate)
    copies = [copy for session in sessions if (copy := session.ceilings.get("copy_bytes_per_s"))]
    parts = [f"{name} {_range(found, units.rate)}" for name, found in rates.items()]
    return ", ".join(parts + [f"copy {_range(copies, units.bandwidth)}"] * bool(copies))


def _range(values: Sequence[float], written: Callable[[float], str]) -> str:
    """ "802 to 814 TFLOP/s": the smallest and the largest, or one that is written alike."""
    low, high = written(min(values)), written(max(values))
    return high if low == high else f"{low.removesuffix(high.lstrip('0123456789.'))} to {high}"
