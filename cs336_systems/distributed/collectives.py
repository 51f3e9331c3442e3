"""Collectives over any backend and device: fast calls where the backend has them, plain calls elsewhere."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.distributed import private


class FastCalls(NamedTuple):
    """Features that a backend has for tensors of a device, beyond the plain calls."""

    averages: bool = False
    """Supports `ReduceOp.AVG`."""

    coalesces_all_reduces: bool = False
    """Reduces many tensors in place in one call."""

    launches_together: bool = False
    """Combines collectives of any kind into one launch."""


FAST_CALLS = {
    ("nccl", "cuda"): FastCalls(averages=True, coalesces_all_reduces=True, launches_together=True),
    ("gloo", "cpu"): FastCalls(coalesces_all_reduces=True),
}
"""Fast calls by backend and device type. All other pairs have plain calls only; torch 2.11 to 2.15 refuses
`allreduce_coalesced` for gloo with CUDA tensors."""


@dataclass
class Traffic:
    """Number of collective calls, and the bytes passed to them."""

    calls: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int, calls: int = 1) -> None:
        """Add calls that pass `num_bytes` in total."""
        self.calls += calls
        self.num_bytes += num_bytes


@dataclass(frozen=True)
class Average:
    """An average over the ranks that is under way."""

    works: Sequence[Any]
    """One work per call."""

    divisor: int
    """Number that the tensors must still be divided by after `wait`."""

    def wait(self) -> None:
        """Wait for all calls; on CUDA make the current stream wait."""
        _wait(self.works)


def fast_calls(group: dist.ProcessGroup | None, device: torch.device) -> FastCalls:
    """Return the fast calls of the backend that the group uses for this device."""
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
    """Average each tensor over the ranks at its destination, a global rank; elsewhere it becomes undefined."""
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
    """Launch `collective(*args, group=group, **kwargs)` for all of `arguments`, each with a tensor first, and wait."""
    works = []
    for device in _devices(arguments):

        def start(device: torch.device = device) -> list[Any]:
            here = [args for args in arguments if args[0].device == device]
            return [collective(*args, group=group, async_op=True, **kwargs) for args in here]

        together = fast_calls(group, device).launches_together
        works += private.start_together(start, group, device) if together else start()
    _wait(works)


@functools.cache
def _fast_calls(backends: str, device_type: str) -> FastCalls:
    """Look up torch's backend description, for example "cpu:gloo,cuda:nccl"."""
    by_device = dict(entry.split(":", 1) for entry in backends.split(",") if ":" in entry)
    return FAST_CALLS.get((by_device.get(device_type, ""), device_type), FastCalls())


def _operation(fast: FastCalls, group: dist.ProcessGroup | None) -> tuple[dist.ReduceOp.RedOpType, int]:
    """Return the reduction and the divisor that makes its result an average."""
    return (dist.ReduceOp.AVG, 1) if fast.averages else (dist.ReduceOp.SUM, dist.get_world_size(group))


def _overflows(tensor: Tensor, divisor: int) -> bool:
    """Whether the sum may overflow although the average does not. Divide such tensors first, as NCCL's AVG does."""
    return tensor.dtype == torch.float16 and divisor > 1


def _devices(arguments: Sequence[tuple[Any, ...]]) -> list[torch.device]:
    """Return the devices in the order of their first tensors, which is the same on every rank."""
    return list(dict.fromkeys(args[0].device for args in arguments))


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        if work is not None:
            work.wait()
