"""Compile many candidates at once, in processes that do nothing else and may crash.

The kernels go to Triton's cache on disk, where the measuring process finds them.
"""

import contextlib
import functools
import io
from collections.abc import Iterator, Sequence
from typing import Any

from perf.harness.status import one_line
from perf.studies.fresh_process import side_by_side
from perf.studies.progress import progress
from perf.workloads import build, measured_module
from perf.workloads.workload import Unavailable

Reply = dict[str, Any]
"""The result of a candidate: status; if ok, registers and spills of a thread, and shared_bytes of a block."""


def compile_all(params: Sequence[dict[str, Any]], workers: int) -> Iterator[Reply]:
    """Yield a reply for the params of each candidate, in order; a failure or crash is a reply too."""
    replies = side_by_side(__name__, compiled, params, workers)
    for reply in progress(replies, total=len(params), unit="kernel"):
        yield reply or {"status": "does_not_compile", "reason": "the compiler died; its output is above"}


def compiled(params: dict[str, Any]) -> Reply:
    """Compile one candidate for this GPU. Afterwards this process can no longer launch kernels."""
    from triton.runtime.jit import KernelInterface

    plan_for_this_gpu()

    kernels: list[Any] = []
    # Every launch is kernel[grid](...). Dtypes and strides of its tensors suffice to compile it, without memory.
    KernelInterface.__getitem__ = lambda kernel, grid: (
        lambda *args, **options: kernels.append(kernel.warmup(*args, grid=grid, **options))
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # Triton prints all PTX that ptxas refuses
            build("attention_tiles", params, "meta").run()
        for kernel in kernels:
            kernel._init_handles()  # loads it, which shows its resources and whether it fits
    except Unavailable as reason:
        return {"status": "unavailable", "reason": str(reason)}
    except Exception as error:
        return {"status": "does_not_compile", "reason": _reason(error)}
    largest = max(kernels, key=lambda kernel: kernel.metadata.shared)
    return {
        "status": "ok",
        "registers": largest.n_regs,
        "spills": largest.n_spills,
        "shared_bytes": largest.metadata.shared,
    }


@functools.cache
def plan_for_this_gpu() -> None:
    """Let planning, of tensors on "meta", see this process's GPU: the choice of kernels and of tiles asks for it."""
    import torch

    if not torch.cuda.is_available():
        return
    gpu, here = measured_module("attention.gpu"), torch.device("cuda", torch.cuda.current_device())
    for name in ("multiprocessors", "shared_bytes", "l2_bytes", "runs_gluon"):
        setattr(gpu, name, functools.partial(lambda of, _: of(here), getattr(gpu, name)))


def _reason(error: BaseException) -> str:
    """Return the innermost cause: Triton's message begins with lines of the kernel and its callers."""
    while error.__cause__:
        error = error.__cause__
    return f"{type(error).__name__}: {getattr(error, 'error_message', None) or one_line(error)}"
