"""Compiling many candidates at once, each in a process that does nothing else and may die of it.

What they compile goes to Triton's cache on disk, where the measuring process finds it.
"""

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from perf.harness.status import one_line
from perf.studies.fresh_process import FreshProcess
from perf.workloads import build
from perf.workloads.workload import Unavailable

Reply = dict[str, Any]
"""The result of a candidate: status; if ok, registers and spills of a thread, and shared_bytes of a block."""


def compile_all(params: Sequence[dict[str, Any]], workers: int) -> Iterator[Reply]:
    """A reply for each of these parameters of the workload, in their order. What fails or dies is its own reply."""
    from tqdm import tqdm

    idle: queue.SimpleQueue[FreshProcess] = queue.SimpleQueue()
    compilers = [FreshProcess(__name__) for _ in range(min(workers, len(params)))]
    for compiler in compilers:
        idle.put(compiler)

    def in_any(one: dict[str, Any]) -> Reply:
        compiler = idle.get()
        try:
            return _reply(compiler, one)
        finally:
            idle.put(compiler)

    try:
        with ThreadPoolExecutor(len(compilers)) as threads:
            replies = threads.map(in_any, params)
            yield from tqdm(replies, total=len(params), unit="kernel", leave=False, disable=None)
    finally:
        for compiler in compilers:
            compiler.end()


def _reply(compiler: FreshProcess, params: dict[str, Any]) -> Reply:
    try:
        return compiler.ask(compiled, params)
    except BrokenProcessPool:
        return {"status": "does_not_compile", "reason": "the compiler died; its last words are above"}


def compiled(params: dict[str, Any]) -> Reply:
    """Compile one candidate for this GPU. From then on this process launches nothing any more."""
    from triton.runtime.jit import KernelInterface

    kernels: list[Any] = []
    # Every launch is kernel[grid](..): for which tensors, their dtypes and strides say, and no memory is needed.
    KernelInterface.__getitem__ = lambda kernel, grid: (
        lambda *args, **options: kernels.append(kernel.warmup(*args, grid=grid, **options))
    )
    try:
        build("attention_tiles", params, "meta").run()
        for kernel in kernels:
            kernel._init_handles()  # loads it: whether it fits is known, and what it takes
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


def _reason(error: BaseException) -> str:
    """Triton's begins with a line of the kernel, of each that called it too; what is wrong comes last."""
    while error.__cause__:
        error = error.__cause__
    return f"{type(error).__name__}: {getattr(error, 'error_message', None) or one_line(error)}"
