"""Collectives over any backend and device: fast calls where the backend has them, plain calls elsewhere."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.distributed import private
from cs336_systems.distributed.process_group import global_rank


class FastCalls(NamedTuple):
    """Features that a backend has for tensors of a device, beyond the plain calls."""

    averages: bool = False
    """Supports `ReduceOp.AVG`."""

    coalesces_all_reduces: bool = False
    """Reduces many tensors in place in one call."""

    launches_together: bool = False
    """Combines collectives of any kind into one launch."""

    moves_shards: bool = False
    """Gathers equal shards into one tensor and reduces one tensor into equal shards."""

    follows_the_stream: bool = False
    """Runs calls in the caller's current stream, unless they are asynchronous."""


FAST_CALLS = {
    ("nccl", "cuda"): FastCalls(True, True, True, True, True),
    ("gloo", "cpu"): FastCalls(coalesces_all_reduces=True, moves_shards=True),
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


class Beside:
    """Collectives of a process group that run beside the compute, with the copies that they need.

    With NCCL they have a CUDA stream of high priority: their blocks need not wait until a matmul has started its last.
    """

    def __init__(self, group: dist.ProcessGroup | None):
        self.group = group
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def start_gathers(self, pairs: Sequence[tuple[Tensor, Tensor]], fill: Callable[[], None]) -> Sequence[Any]:
        """Start to gather, for each pair of a whole tensor and this rank's equal share of its rows; return the works.

        `fill` is called first, to copy to the shares.
        """
        size = dist.get_world_size(self.group)
        moves_shards = fast_calls(self.group, pairs[0][0].device).moves_shards

        def start(whole: Tensor, mine: Tensor, is_async: bool) -> list[Any]:
            if moves_shards:
                return [private.all_gather_single(whole, mine, group=self.group, async_op=is_async)]
            return [dist.all_gather(list(whole.chunk(size)), mine, group=self.group, async_op=is_async)]

        return self._start(start, pairs, fill)

    def start_averages_of_rows(self, pairs: Sequence[tuple[Tensor, Tensor]], fill: Callable[[], None]) -> Average:
        """Start to average, for each pair of a whole tensor and room for this rank's equal share of its rows.

        `fill` is called first, to copy to the whole tensors.
        """
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        fast = fast_calls(self.group, pairs[0][0].device)
        operation, divisor = _operation(fast, self.group)
        overflows = _overflows(pairs[0][0], divisor)

        def start(whole: Tensor, mine: Tensor, is_async: bool) -> list[Any]:
            if overflows:
                whole = whole / divisor
            if fast.moves_shards:
                return [private.reduce_scatter_single(mine, whole, op=operation, group=self.group, async_op=is_async)]
            works = []
            for owner, rows in enumerate(whole.chunk(size)):
                result = mine.copy_(rows) if owner == rank else rows.clone()  # undefined afterwards
                there = global_rank(self.group, owner)
                works.append(dist.reduce(result, there, operation, self.group, async_op=is_async))
            return works

        return Average(self._start(start, pairs, fill), 1 if overflows else divisor)

    def _start(
        self,
        start: Callable[[Tensor, Tensor, bool], list[Any]],
        pairs: Sequence[tuple[Tensor, Tensor]],
        fill: Callable[[], None],
    ) -> Sequence[Any]:
        """Call `fill` and start a collective for each pair, behind what the current stream has been given so far."""
        device = pairs[0][0].device
        fast = fast_calls(self.group, device)

        def start_all(is_async: bool) -> list[Any]:
            fill()

            def start_each() -> list[Any]:
                return [work for pair in pairs for work in start(*pair, is_async)]

            is_one_launch = fast.launches_together and len(pairs) > 1
            return private.start_together(start_each, self.group, device) if is_one_launch else start_each()

        if not fast.follows_the_stream:
            return start_all(True)
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device, priority=-1)
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            _wait(start_all(False))
            return [_InStream(stream.record_event(), (pairs, fill))]


class _InStream:
    """What was given to a stream so far, as a work.

    It keeps the tensors until the wait, so that their memory is not given to what computes meanwhile.
    """

    def __init__(self, event: torch.cuda.Event, kept: object):
        self._event, self._kept = event, kept

    def wait(self) -> None:
        """Make the current stream wait."""
        self._event.wait()
        self._kept = None


def require_floating(**dtypes: object) -> None:
    """Raise `ValueError` for what is neither None nor a floating-point dtype."""
    for name, dtype in dtypes.items():
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"{name}={dtype!r} was given; allowed: a floating-point dtype, or None")


def refuse_sparse(name: str, gradient: Tensor) -> None:
    """Raise `ValueError` for a gradient that collectives cannot average."""
    if gradient.is_sparse:
        raise ValueError(f"{name} has a sparse gradient; allowed: dense gradients")


def total_norm(gradients: Sequence[Tensor], parameters: Iterable[Tensor], group: dist.ProcessGroup | None) -> Tensor:
    """Return the norm of all ranks' gradients together, on the device of the first of all `parameters`.

    Its dtype is the widest of the parameters', at least float32, whatever a rank owns.
    """
    every = list(parameters)
    dtype = functools.reduce(torch.promote_types, [value.dtype.to_real() for value in every], torch.float32)
    device = every[0].device if every else None
    square = nn.utils.get_total_norm(list(gradients)).to(device=device, dtype=dtype) ** 2
    dist.all_reduce(square, group=group)
    return square.sqrt()


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Start the message of a `RuntimeError` raised inside with this rank and `what` failed."""
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise RuntimeError(f"rank {dist.get_rank()}: {what} failed: {reason}") from error


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
