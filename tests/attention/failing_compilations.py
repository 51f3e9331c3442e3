"""Compilations that fail, and what the calls after them get; for compute capability 9.0, no GPU is needed.

TRITON_INTERPRET=0 python -m tests.attention.failing_compilations
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from cs336_systems.attention.launch import Launch, compile_side_by_side
from tests.attention.no_gpu import NoGPU


@triton.jit
def failing_kernel(X_ptr, N: tl.constexpr):
    tl.static_assert(N < 0, "as asked")


@triton.jit
def working_kernel(X_ptr, N: tl.constexpr):
    tl.store(X_ptr + tl.arange(0, N), 1.0)


X = torch.zeros(1024)


def compile_two(kernel: Any, n: int) -> str:
    """Compile two sizes side by side; returns the name of the error, or "compiled" if both are in Triton's cache."""
    try:
        compile_side_by_side(*((Launch(kernel, 1, (), {"N": size}), (X,)) for size in (n, 2 * n)))
    except Exception as error:
        return type(error).__name__
    return "compiled" if len(kernel.device_caches[0][0]) >= 2 else "not compiled"


def main() -> None:
    """Print what each call came to, by name."""
    driver.set_active(NoGPU())
    said = {
        "fails": compile_two(failing_kernel, 16),
        "fails again": compile_two(failing_kernel, 16),
        "after it": compile_two(working_kernel, 16),
    }
    with ThreadPoolExecutor(1) as thread:
        said["fails in a thread"] = thread.submit(compile_two, failing_kernel, 16).result()
        said["after it in that thread"] = thread.submit(compile_two, working_kernel, 64).result()
    with ThreadPoolExecutor(1) as threads, triton.AsyncCompileMode(threads):
        said["within the caller's mode"] = compile_two(working_kernel, 256)
        said["fails within the caller's mode"] = compile_two(failing_kernel, 256)
        working_kernel.warmup(X, N=1024, grid=(1,))
    working_kernel.device_caches.clear()
    ready = threading.Barrier(8)

    def with_others(number: int) -> str:
        ready.wait()
        return compile_two(failing_kernel if number % 4 == 0 else working_kernel, 16 << number % 3)

    with ThreadPoolExecutor(8) as threads:
        said["in eight threads at once"] = " ".join(threads.map(with_others, range(8)))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
