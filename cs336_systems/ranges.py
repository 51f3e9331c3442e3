"""Named ranges for profilers, which cost an attribute lookup while nobody records them.

with recorded():           # by whoever profiles
    step()
with range_("softmax"):    # in the code that is profiled
    ...
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

NOTHING = contextlib.nullcontext()

_open: Callable[[str], AbstractContextManager[object]] | None = None


def range_(name: str) -> AbstractContextManager[object]:
    """A range of this name where ranges are recorded, else nothing."""
    return NOTHING if _open is None else _open(name)


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record ranges meanwhile: for torch.profiler and, on a GPU, as NVTX ranges for nsys and ncu."""
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
