"""Peak memory of one piece of work: the same bytes whatever ran before in the process."""

import gc
from collections.abc import Callable

from perf.workloads.workload import Workload


def peak_allocated_bytes(build: Callable[[], Workload]) -> int:
    """Most bytes that `build()`'s tensors and one run of them held at once, by torch's CUDA allocator.

    Inputs count, since a user has to hold them; what the process held before (cuBLAS workspaces, the flush buffer)
    does not. The work must have run once before, so that such workspaces exist already. Allocated, not reserved:
    what the allocator keeps in reserve depends on what ran before (36 to 39 GB for identical work have been seen).
    """
    import torch

    release_memory()
    baseline = torch.cuda.memory_allocated()
    work = build()
    work.prepare()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work.run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - baseline


def release_memory() -> None:
    """Give back what nothing refers to any more, so that one case's leftovers are not another's shortage."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
