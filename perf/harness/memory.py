"""Peak memory of a workload and its largest allocations, independent of earlier work in the process."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

from perf.workloads.workload import Workload

TOP_ALLOCATIONS = 8


class Leftovers:
    """GPU memory that earlier cases leave behind, which later cases may need."""

    def __init__(self) -> None:
        self._held_bytes = 0

    def release(self) -> None:
        """Free unreferenced GPU memory, that in reference cycles included."""
        import torch

        if not torch.cuda.is_available():
            return
        # A collection takes 0.1 s with torch loaded, and most cases leave no cycle with a tensor.
        if torch.cuda.memory_allocated() > self._held_bytes:
            gc.collect()
            self._held_bytes = torch.cuda.memory_allocated()
        torch.cuda.empty_cache()


def peak_memory(build: Callable[[], Workload], leftovers: Leftovers) -> dict[str, Any]:
    """Measure `peak_bytes` and `largest_allocations` of building and running `build()`, by torch's CUDA allocator.

    What the work has outside of that allocator is added. The run is the second if the work settles, that is, if its
    first run creates state that later runs keep. Inputs count, since a user has to keep them. Memory from before
    (cuBLAS workspaces, the flush buffer) does not; the work must have run once, so that it exists already.

    Requested bytes count, as in the trace. Allocated bytes of identical work differ by 6 MiB, since a cached block is
    handed out whole if less than 1 MiB would remain, and reserved bytes by 3 GB.
    """
    import torch

    leftovers.release()
    # Without stacks of frees: collecting one while an exception is on its way, as when a checkpoint stops recomputing,
    # loses the exception.
    record = torch.cuda.memory._record_memory_history
    record(context="alloc", stacks="python", max_entries=1_000_000, clear_history=True)
    try:
        work = build()
        if work.settles:
            work.prepare()
            work.run()
        work.prepare()
        torch.cuda.synchronize()
        first_of_run = len(allocator_trace())
        work.run()
        torch.cuda.synchronize()
        trace = allocator_trace()
        outside_bytes = work.outside_bytes()
    finally:
        record(enabled=None)
    peak_bytes, largest_allocations = peak_of(trace, first_of_run)
    return {"peak_bytes": peak_bytes + outside_bytes, "largest_allocations": largest_allocations}


def peak_of(trace: list[dict[str, Any]], first_of_run: int) -> tuple[int, list[list[Any]]]:
    """Return the peak bytes from entry `first_of_run` on, and [bytes, callers] of the largest blocks at the peak.

    Blocks from before the trace are unknown to it. The allocator's own statistics would decrease when such a block is
    freed, as autograd's thread frees gradients of an earlier call at any time.
    """
    alive: dict[int, dict[str, Any]] = {}
    total = peak = 0
    at_peak: list[dict[str, Any]] = []
    for index, entry in enumerate(trace):
        if entry["action"] == "alloc":
            alive[entry["addr"]] = entry
            total += entry["size"]
        elif entry["action"] == "free_completed" and (block := alive.pop(entry["addr"], None)):
            total -= block["size"]
        if index >= first_of_run - 1 and total > peak:
            peak, at_peak = total, list(alive.values())
    largest = sorted(at_peak, key=lambda block: -block["size"])[:TOP_ALLOCATIONS]
    return peak, [[block["size"], " < ".join(_callers(block["frames"]))] for block in largest]


def _callers(frames: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the two innermost frames outside PyTorch that led to the allocation."""
    ours = (frame for frame in frames if "/torch/" not in frame["filename"] and frame["filename"] != "??")
    for frame, _ in zip(ours, range(2), strict=False):
        yield f"{'/'.join(frame['filename'].split('/')[-2:])}:{frame['line']} {frame['name']}"


def allocator_trace() -> list[dict[str, Any]]:
    """Return the recorded events of the current GPU's allocator, oldest first."""
    import torch

    traces = torch.cuda.memory._snapshot()["device_traces"]
    return traces[torch.cuda.current_device()] if traces else []
