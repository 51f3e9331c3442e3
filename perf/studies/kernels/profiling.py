"""Kernels of one piece of work and their named ranges, by torch.profiler.

A kernel belongs to the ranges that were open on the host when it was launched. Kernel and launch share CUPTI's
correlation id (else the launch time is that of the operator linked to the kernel); launch and range share the host's
clock. This holds for any thread: the backward's runs while its caller waits inside the range "backward". On a CPU an
operator with its self time stands for a kernel.
"""

import bisect
import contextlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import click

from perf.harness.spans import covered_s, merged
from perf.studies.device import synchronize
from perf.studies.lm import Setting
from perf.workloads import PACKAGE, measured

KINDS = ("matmul", "fused attention", "softmax", "elementwise", "optimizer", "other")
KEPT = 0.999
"""Share of the time whose kernels are written to file: a fifth of all kernels share the last thousandth."""

_LAUNCH = re.compile(r"cu(da)?[A-Z]")  # cudaLaunchKernel, cuLaunchKernelEx, cudaMemcpyAsync
# The first match counts. Inductor names a kernel after everything it fuses, even an addmm's bias; its matmuls are
# templates. Fused attention uses CUTLASS. A log-softmax belongs to the loss.
_NAMES = (
    ("softmax", r"triton_(poi|red|per)_.*(?<!log_)softmax"),
    ("elementwise", r"triton_(poi|red|per)_"),
    ("fused attention", r"flash_(fwd|bwd)|fmha|flash.*attention|attention.*(for|back)ward|scaled_dot_product|sdpa"),
    (
        "matmul",
        r"gemm|gemv|cutlass|cublas|nvjet|xmma|s884|s1688|s16816|matmul|triton_(mm|tem)"
        r"|aten::(mm|bmm|addmm|baddbmm|addbmm|linear|mv|dot|einsum)\b",
    ),
    ("other", r"log_?softmax"),
    ("softmax", r"softmax"),
    ("elementwise", r"elementwise|aten::_?(add|sub|rsub|mul|div|neg|pow|r?sqrt|exp|cos|sin|silu|sigmoid|where"
                    r"|masked_fill|copy|to_copy|fill|zero)(_backward)?_?$"),
)  # fmt: skip
_KINDS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _NAMES]


class Kernel(NamedTuple):
    """A kernel, copy or fill on the device; on a CPU an operator with the time spent in itself."""

    name: str
    launched_s: float | None
    """Time of the launch on the host; None where the trace has no launch."""

    start_s: float
    seconds: float


class Profile(NamedTuple):
    """Kernels in order of their starts, and the named ranges of the host: name -> (start, end) of each, seconds."""

    kernels: list[Kernel]
    ranges: dict[str, list[tuple[float, float]]]

    def within(self, name: str) -> list[Kernel]:
        """Return the kernels that were launched in a range of this name."""
        spans = merged(self.ranges.get(name, ()))
        starts = [start for start, _ in spans]

        def is_inside(time_s: float) -> bool:
            at = bisect.bisect_right(starts, time_s) - 1
            return at >= 0 and time_s < spans[at][1]

        return [each for each in self.kernels if each.launched_s is not None and is_inside(each.launched_s)]

    def host_s(self, name: str) -> float:
        """Return the seconds that the host spent in ranges of this name."""
        return covered_s(self.ranges.get(name, ()))


def profile_of(events: Iterable[Any], *, on_gpu: bool) -> Profile:
    """Return the profile in torch.profiler's `FunctionEvent`s."""
    from torch.autograd import DeviceType

    ranges: dict[str, list[tuple[float, float]]] = {}
    launches: dict[int, float] = {}
    operators: dict[int, float] = {}  # numbered by another count than the launches
    work: list[tuple[str, int, int, float, float]] = []
    for event in events:
        start, end = event.time_range.start * 1e-6, event.time_range.end * 1e-6
        on_host = event.device_type == DeviceType.CPU
        if event.is_user_annotation:
            if on_host:  # the device's copy of a range lasts from its first kernel to its last
                ranges.setdefault(event.name, []).append((start, end))
        elif not on_host:
            linked = getattr(event, "linked_correlation_id", 0)
            work.append((event.name, event.id, linked, start, end - start))
        elif on_gpu and _LAUNCH.match(event.name):
            launches[event.id] = start
        elif on_gpu:
            operators[event.id] = start
        elif "::" in event.name and "autograd::" not in event.name and event.self_cpu_time_total > 0:
            launches[len(work)] = start
            work.append((event.name, len(work), 0, start, event.self_cpu_time_total * 1e-6))
    kernels = [
        Kernel(name, launches.get(key, operators.get(linked) if linked else None), start, seconds)
        for name, key, linked, start, seconds in work
        if name not in ranges
    ]
    return Profile(sorted(kernels, key=lambda kernel: kernel.start_s), ranges)


def profiled(run: Callable[[], object], *, on_gpu: bool) -> Profile:
    """Profile one call of `run`. Raises `click.ClickException` if the trace is empty."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for _ in range(2):  # after a teardown, every second session finds nothing
        synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(activities=activities) as profiler:
                run()
                synchronize()
            profile = profile_of(profiler.events() or [], on_gpu=on_gpu)
        if profile.kernels:
            return profile
    raise click.ClickException("torch.profiler saw no kernel; another profiler may hold the GPU, which serves one")


def busy_s(kernels: list[Kernel], *, on_gpu: bool) -> float:
    """Return the time in which a kernel ran, overlapping kernels once; on a CPU the sum of self times."""
    if not on_gpu:
        return sum(kernel.seconds for kernel in kernels)
    return covered_s((each.start_s, each.start_s + each.seconds) for each in kernels)


def kind_of(name: str) -> str:
    """Return the kind that a name tells, one of `KINDS` except "optimizer", which follows from the launch."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def plain(name: str) -> str:
    """Return a C++ name without its parameter lists, which repeat the template arguments: a third of the length."""
    if name.startswith("Mem"):  # "Memcpy HtoD (Pinned -> Device)"
        return name
    name, count = name.replace("(anonymous namespace)::", ""), 1
    while count:  # from the inside out
        name, count = re.subn(r"\([^()]*\)", "", name)
    return name


def summary(kernels: list[Kernel], optimizer: list[Kernel], *, on_gpu: bool) -> dict[str, Any]:
    """Return busy_s, launches, unattributed (kernels without a known launch), kernels_s and kinds_s.

    kernels_s is [plain name, kind, count, seconds], longest first; kinds_s the seconds of each of `KINDS`.
    """
    stepping = set(optimizer)
    totals: dict[tuple[str, str], list[float]] = {}
    for kernel in kernels:
        kind = "optimizer" if kernel in stepping else kind_of(kernel.name)
        totals.setdefault((plain(kernel.name), kind), []).append(kernel.seconds)
    longest = sorted(totals.items(), key=lambda item: -sum(item[1]))
    kinds = dict.fromkeys(KINDS, 0.0)
    for (_, kind), seconds in longest:
        kinds[kind] += sum(seconds)
    return {
        "busy_s": busy_s(kernels, on_gpu=on_gpu),
        "launches": len(kernels),
        "unattributed": sum(kernel.launched_s is None for kernel in kernels),
        "kernels_s": [[name, kind, len(seconds), sum(seconds)] for (name, kind), seconds in longest],
        "kinds_s": kinds,
    }


def shortened(part: dict[str, Any]) -> dict[str, Any]:
    """Return a `summary` for the file: the kernels that take `KEPT` of the time, and left_out_s of the others."""
    kept: list[list[Any]] = []
    left = sum(seconds for *_, seconds in part["kernels_s"])
    enough = (1 - KEPT) * left
    for name, kind, count, seconds in part["kernels_s"]:
        if left <= enough:
            break
        kept.append([name, kind, count, round(seconds, 9)])
        left -= seconds
    return part | {"kernels_s": kept, "left_out_s": round(max(left, 0.0), 9)}


def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, is_causal: bool = False, *, softmax_scale: float | None = None
) -> Any:
    """Compute the reference's eager attention, with a range around each of its parts."""
    import torch

    range_ = measured("ranges", "range_")
    with range_("computing attention scores"):
        scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
        if is_causal:
            rows, columns = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
            scores = scores.masked_fill(rows[:, None] < columns, float("-inf"))
    with range_("computing softmax"):
        weights = torch.softmax(scores, dim=-1)
    with range_("final matmul"):
        return weights @ v


@contextlib.contextmanager
def annotated(setting: Setting) -> Iterator[None]:
    """Add ranges inside the model and its eager attention; none in compiled code, whose graph they would break."""
    if setting.variant != "eager":
        yield
        return
    name = scaled_dot_product_attention.__name__
    original = measured("attention.reference", name)
    # Rebound where `flash_attention` looks it up, as in the course, so that it reaches foreign models too.
    module = sys.modules[f"{PACKAGE}.attention.reference"]
    setattr(module, name, scaled_dot_product_attention)
    try:
        with measured("ranges", "recorded")():
            yield
    finally:
        setattr(module, name, original)


def phase(name: str) -> AbstractContextManager[object]:
    """Return a range around a phase, recorded whether or not the model has ranges."""
    with measured("ranges", "recorded")():
        return measured("ranges", "range_")(name)
