"""Evidence that explains a later slow-down: a case's kernels, and the compiler's output for ours."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from perf.harness.profiler import device_activity
from perf.workloads import package
from perf.workloads.workload import Workload

MAX_KERNELS = 40
MAX_NAME = 200  # CUTLASS names have up to a thousand characters


def explain(work: Workload) -> dict[str, Any]:
    """Return the kernels of one call of warm work, and the compiled form of our Triton kernels among them.

    kernels           [name, count, microseconds], longest first, by torch.profiler (CUPTI), without flushing L2
    triton_kernels    name, options, registers a thread, spills (32-bit words a thread), shared_bytes, sass (sha256)
    """
    launched: set[int] = set()
    kernels: dict[str, list[float]] = {}
    work.prepare()
    with _launches(launched):
        activities = device_activity(work.run)
    for activity in activities:
        kernels.setdefault(activity.name, []).append((activity.end_s - activity.start_s) * 1e6)
    longest = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:MAX_KERNELS]
    return {
        "kernels": [[name[:MAX_NAME], len(times), round(sum(times), 3)] for name, times in longest],
        "triton_kernels": [_describe(kernel) for kernel in _compiled_kernels() if kernel.function in launched],
    }


class _launches:  # noqa: N801 - reads as a statement
    """Record the handle of every Triton kernel that is launched inside the block."""

    def __init__(self, handles: set[int]):
        self._handles = handles

    def __enter__(self) -> None:
        if triton := sys.modules.get("triton"):
            triton.knobs.runtime.launch_enter_hook.add(self._note)

    def __exit__(self, *exception: object) -> None:
        if triton := sys.modules.get("triton"):
            triton.knobs.runtime.launch_enter_hook.remove(self._note)

    def _note(self, metadata: Any) -> None:
        self._handles.add(metadata.get()["function"])


def _compiled_kernels() -> Iterator[Any]:
    """Yield every kernel that this process has compiled of the measured package's @triton.jit functions."""
    functions = {
        id(function): function
        for name, module in list(sys.modules.items())
        if module is not None and name.partition(".")[0] == package()
        for function in vars(module).values()
        if hasattr(function, "device_caches")
    }
    for function in functions.values():
        for kernels, *_ in function.device_caches.values():
            yield from kernels.values()


def _describe(kernel: Any) -> dict[str, Any]:
    metadata = kernel.metadata
    return {
        "name": kernel.name,
        "num_warps": metadata.num_warps,
        "num_stages": metadata.num_stages,
        "registers": kernel.n_regs,
        "spills": kernel.n_spills,
        "shared_bytes": metadata.shared,
        "sass": _sass_digest(kernel),
    }


def _sass_digest(kernel: Any) -> str:
    """Return the digest of the machine code with its control codes; "" without Triton's disassembler.

    The worker compiles without line information, so a comment above a kernel does not change the digest.
    """
    try:
        text = kernel.asm["sass"]
    except (OSError, RuntimeError, subprocess.CalledProcessError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
