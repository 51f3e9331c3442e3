"""Named ranges for profilers. They cost a global lookup while no profiler records them.

with range_("softmax"):    # in the profiled code
    ...
with recorded():           # in the profiler
    step()
"""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

NOTHING = contextlib.nullcontext()

_recorders = 0
_counting = threading.Lock()


def range_(name: str) -> AbstractContextManager[object]:
    """Open a range of this name if ranges are recorded."""
    return _record(name) if _recorders else NOTHING


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record ranges inside, for torch.profiler and, on a GPU, as NVTX ranges for nsys and ncu."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _recorders
    with _counting:
        _recorders += change


@contextlib.contextmanager
def _record(name: str) -> Iterator[None]:
    with torch.profiler.record_function(name):
        if not torch.cuda.is_available():
            yield
            return
        with torch.cuda.nvtx.range(name):
            yield
