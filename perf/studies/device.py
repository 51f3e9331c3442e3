"""The device that a study measures on: a GPU if there is one, else the CPU."""

import functools
from typing import Literal

from perf.harness.bench import Bench

ON_A_CPU = "Measured on a CPU: the method is the GPU's, its times and speed-ups are not."

Device = Literal["cuda", "cpu"]


def device_kind() -> Device:
    """Return "cuda" where there is a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@functools.cache
def bench() -> Bench:
    """Return the bench of this process."""
    return Bench(device_kind())


def memory_bytes() -> float:
    """Return the memory of the GPU; infinity without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else float("inf")


def release() -> None:
    """Free the memory of the last model and its compiled forms."""
    import gc

    import torch

    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
