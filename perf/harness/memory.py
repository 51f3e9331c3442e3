"""Memory of one piece of work: its peak, who held it, and nothing of what ran before in the process."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

from perf.workloads.workload import Workload

TOP_ALLOCATIONS = 8


class Leftovers:
    """What cases leave behind in a process, and getting rid of it, so that it is not another case's shortage."""

    def __init__(self) -> None:
        self._held_bytes = 0

    def release(self) -> None:
        """Give back what nothing refers to any more."""
        import torch

        if not torch.cuda.is_available():
            return
        # A collection takes 0.1 s with torch loaded, and most cases leave no cycle that holds a tensor.
        if torch.cuda.memory_allocated() > self._held_bytes:
            gc.collect()
            self._held_bytes = torch.cuda.memory_allocated()
        torch.cuda.empty_cache()


def peak_memory(build: Callable[[], Workload], leftovers: Leftovers) -> dict[str, Any]:
    """`peak_bytes` and `largest_allocations` of `build()`'s tensors and one run of them, from torch's CUDA allocator.

    Of a second run, where the first makes what all others hold. Inputs count, since a user has to hold them; what the
    process held before (cuBLAS workspaces, the flush buffer) does not. The work must have run once before, so that such
    workspaces exist already. Counted is what was asked for, as in the trace. Allocated bytes depend on what ran before,
    since a cached block goes out whole where less than 1 MiB would remain, and reserved bytes even more: by 6 MiB and
    3 GB for identical work.
    """
    import torch

    leftovers.release()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000, clear_history=True)
    try:
        work = build()
        if work.settles:
            work.prepare()
            work.run()
        work.prepare()
        torch.cuda.synchronize()
        first_of_run = len(_trace())
        work.run()
        torch.cuda.synchronize()
        trace = _trace()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    peak_bytes, largest_allocations = peak_of(trace, first_of_run)
    return {"peak_bytes": peak_bytes, "largest_allocations": largest_allocations}


def peak_of(trace: list[dict[str, Any]], first_of_run: int) -> tuple[int, list[list[Any]]]:
    """Most bytes alive at once, and [bytes, where] of the largest blocks then; from entry `first_of_run` on.

    Blocks from before the trace are not known to it. The allocator's own statistics would count down when one of them
    is freed: gradients of an earlier call, which autograd's thread lets go when it gets around to it.
    """
    alive: dict[int, dict[str, Any]] = {}
    total = most = 0
    at_peak: list[dict[str, Any]] = []
    for index, entry in enumerate(trace):
        if entry["action"] == "alloc":
            alive[entry["addr"]] = entry
            total += entry["size"]
        elif entry["action"] == "free_completed" and (block := alive.pop(entry["addr"], None)):
            total -= block["size"]
        if index >= first_of_run - 1 and total > most:
            most, at_peak = total, list(alive.values())
    largest = sorted(at_peak, key=lambda block: -block["size"])[:TOP_ALLOCATIONS]
    return most, [[block["size"], " < ".join(_callers(block["frames"]))] for block in largest]


def _callers(frames: list[dict[str, Any]]) -> Iterator[str]:
    """The two innermost frames that are not PyTorch's own: who asked for the block."""
    ours = (frame for frame in frames if "/torch/" not in frame["filename"] and frame["filename"] != "??")
    for frame, _ in zip(ours, range(2), strict=False):
        yield f"{'/'.join(frame['filename'].split('/')[-2:])}:{frame['line']} {frame['name']}"


def _trace() -> list[dict[str, Any]]:
    import torch

    traces = torch.cuda.memory._snapshot()["device_traces"]
    return traces[torch.cuda.current_device()] if traces else []
