"""Collectives over any backend and device: the fast ones where a backend has them, the plain ones elsewhere."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.private import training as private


class Fast(NamedTuple):
    """What a backend does with tensors of a device beyond the plain calls."""

    averages: bool = False
    """`ReduceOp.AVG`."""

    coalesces_all_reduces: bool = False
    """One call for many tensors where they lie."""

    launches_together: bool = False
    """One launch for collectives of any kind."""


FAST = {
    ("nccl", "cuda"): Fast(averages=True, coalesces_all_reduces=True, launches_together=True),
    ("gloo", "cpu"): Fast(coalesces_all_reduces=True),
}
"""By backend and type of device. All others have the plain calls alone, such as gloo with CUDA tensors: torch 2.11 to
2.15 refuses `allreduce_coalesced` for them."""


@dataclass
class Traffic:
    """Collectives that were called, and the bytes handed to them."""

    calls: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int, calls: int = 1) -> None:
        """What these calls sent together."""
        self.calls += calls
        self.num_bytes += num_bytes


@dataclass(frozen=True)
class Average:
    """Tensors on their way to their average over the ranks."""

    works: Sequence[Any]
    """One of each call."""

    divisor: int
    """What the tensors are still to be divided by after the journey."""

    def wait(self) -> None:
        """Until the journey is over, or on CUDA let the current stream wait for it."""
        _wait(self.works)


def fast_calls(group: dist.ProcessGroup | None, device: torch.device) -> Fast:
    """What the backend that a group has for a device does beyond the plain calls."""
    return _fast_calls(dist.get_backend_config(group), device.type)


def start_average(tensors: list[Tensor], group: dist.ProcessGroup | None) -> Average:
    """Start to average tensors of one dtype and device over the ranks, in place."""
    fast = fast_calls(group, tensors[0].device)
    operation, divisor = _operation(fast, group)
    if _overflows(tensors[0], divisor):
        private.divide_each(tensors, divisor)
        divisor = 1
    if fast.coalesces_all_reduces and len(tensors) > 1:
        works = private.all_reduce_coalesced(tensors, operation, group)
    else:
        works = [dist.all_reduce(tensor, operation, group=group, async_op=True) for tensor in tensors]
    return Average(works, divisor)


def average_at(gradients: Sequence[tuple[Tensor, int]], group: dist.ProcessGroup | None) -> None:
    """Average each tensor over the ranks, for the (global) rank beside it alone; elsewhere it is then undefined."""
    for device in _devices(gradients):
        here = [(gradient, owner) for gradient, owner in gradients if gradient.device == device]
        operation, divisor = _operation(fast_calls(group, device), group)
        private.divide_each([gradient for gradient, _ in here if _overflows(gradient, divisor)], divisor)
        run_together(dist.reduce, here, group, op=operation)
        if divisor > 1:
            owned = [gradient for gradient, owner in here if owner == dist.get_rank()]
            private.divide_each([gradient for gradient in owned if not _overflows(gradient, divisor)], divisor)


def run_together(
    collective: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], group: dist.ProcessGroup | None, **kwargs: Any
) -> None:
    """`collective(*one, group=group, **kwargs)` for each of `arguments`, a tensor first, at once; then wait."""
    works = []
    for device in _devices(arguments):

        def start(device: torch.device = device) -> list[Any]:
            here = [one for one in arguments if one[0].device == device]
            return [collective(*one, group=group, async_op=True, **kwargs) for one in here]

        together = fast_calls(group, device).launches_together
        works += private.start_together(start, group, device) if together else start()
    _wait(works)


@functools.cache
def _fast_calls(backends: str, device_type: str) -> Fast:
    """Of torch's "cpu:gloo,cuda:nccl"."""
    of_devices = dict(one.split(":", 1) for one in backends.split(",") if ":" in one)
    return FAST.get((of_devices.get(device_type, ""), device_type), Fast())


def _operation(fast: Fast, group: dist.ProcessGroup | None) -> tuple[dist.ReduceOp.RedOpType, int]:
    """The operation, and what its result is to be divided by."""
    return (dist.ReduceOp.AVG, 1) if fast.averages else (dist.ReduceOp.SUM, dist.get_world_size(group))


def _overflows(tensor: Tensor, divisor: int) -> bool:
    """Whether a sum may be infinite where its average is not: such tensors are divided first, as NCCL's AVG does."""
    return tensor.dtype == torch.float16 and divisor > 1


def _devices(arguments: Sequence[tuple[Any, ...]]) -> list[torch.device]:
    """In the order of their first tensors, which is the same on every rank."""
    return list(dict.fromkeys(one[0].device for one in arguments))


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        if work is not None:
            work.wait()
