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
    """Collectives of a process group that run beside the compute.

    With NCCL they have a CUDA stream of high priority: their blocks need not wait until a matmul has started its last.
    """

    def __init__(self, group: dist.ProcessGroup | None):
        self.group = group
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def start_gathers(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Sequence[Any]:
        """Start to gather whole tensors from equal shares of their rows; return the works.

        Each pair is a whole tensor and this rank's rows. They are cast and, if they are fewer than a share, padded.
        """
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        fast = fast_calls(self.group, pairs[0][0].device)
        shares = [(whole, whole.view(size, -1, *whole.shape[1:])[rank]) for whole, _ in pairs]

        def launch(is_async: bool) -> list[Any]:
            _fill([(share, rows) for (_, share), (_, rows) in zip(shares, pairs, strict=True)])
            if fast.launches_together:
                return private.all_gather_coalesced(shares, self.group, is_async)
            if fast.moves_shards:
                return [private.all_gather_single(*each, group=self.group, async_op=is_async) for each in shares]
            return [
                dist.all_gather(list(whole.chunk(size)), share, group=self.group, async_op=is_async)
                for whole, share in shares
            ]

        return self._start(launch, pairs[0][0].device, pairs)

    def start_averages_of_rows(self, gradients: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor]]) -> Average:
        """Start to average tensors, and to give every rank an equal share of the rows of each.

        `pairs` has, for each gradient, itself or room for it, of more rows or another dtype, and room for the share.
        The current stream fills the room, so that a gradient's own memory is free again at once.
        """
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        fast = fast_calls(self.group, pairs[0][0].device)
        operation, divisor = _operation(fast, self.group)
        overflows = _overflows(pairs[0][0], divisor)
        _fill([(whole, gradient) for (whole, _), gradient in zip(pairs, gradients, strict=True)])

        def launch(is_async: bool) -> list[Any]:
            if fast.launches_together:
                return private.reduce_scatter_coalesced(pairs, operation, self.group, is_async)
            works = []
            for whole, mine in pairs:
                whole = whole / divisor if overflows else whole
                if fast.moves_shards:
                    works.append(private.reduce_scatter_single(mine, whole, operation, self.group, is_async))
                    continue
                for owner, rows in enumerate(whole.chunk(size)):
                    result = mine.copy_(rows) if owner == rank else rows.clone()  # undefined afterwards
                    works.append(dist.reduce(result, global_rank(self.group, owner), operation, self.group, is_async))
            return works

        return Average(self._start(launch, pairs[0][0].device, pairs), 1 if overflows else divisor)

    def _start(self, launch: Callable[[bool], list[Any]], device: torch.device, kept: object) -> Sequence[Any]:
        """Call `launch`, behind what the current stream has been given so far, and keep `kept` until the wait."""
        if not fast_calls(self.group, device).follows_the_stream:
            return launch(True)
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device, priority=-1)
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            _wait(launch(False))
            return [_InStream(stream.record_event(), kept)]


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


@torch.no_grad()
def _fill(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy to each room the rows for it, unless they are the room, and zeros behind them."""
    pairs = [(room, rows) for room, rows in pairs if room.data_ptr() != rows.data_ptr()]
    private.copy_each([room[: rows.shape[0]] for room, rows in pairs], [rows for _, rows in pairs])
    for room, rows in pairs:
        if rows.shape[0] < room.shape[0]:
            room[rows.shape[0] :].zero_()


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
