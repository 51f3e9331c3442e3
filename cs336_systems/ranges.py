"""Named ranges for profilers. They cost a global lookup while no profiler records them.

with range_("softmax"):    # in the profiled code
    ...
with recorded():           # in the profiler
    step()
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

NOTHING = contextlib.nullcontext()

_open: Callable[[str], AbstractContextManager[object]] | None = None


def range_(name: str) -> AbstractContextManager[object]:
    """Open a range of this name if ranges are recorded."""
    return NOTHING if _open is None else _open(name)


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record ranges inside, for torch.profiler and, on a GPU, as NVTX ranges for nsys and ncu."""
    global _open
    before, _open = _open, _record
    try:
        yield
    finally:
        _open = before


@contextlib.contextmanager
def _record(name: str) -> Iterator[None]:
    with torch.profiler.record_function(name):
        if not torch.cuda.is_available():
            yield
            return
        with torch.cuda.nvtx.range(name):
            yield
