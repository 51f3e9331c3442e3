"""Collectives over any backend and device: fast calls where the backend has them, plain calls elsewhere."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems import private
from cs336_systems.distributed.process_group import global_rank
from cs336_systems.memory import materialized

Item = TypeVar("Item")


class FastCalls(NamedTuple):
    """Features that a backend has for tensors of a device, beyond the plain calls."""

    averages: bool = False
    """Supports `ReduceOp.AVG`."""

    coalesces_all_reduces: bool = False
    """Reduces many tensors in place in one call."""

    launches_together: bool = False
    """Combines collectives of any kind into one launch."""

    moves_shards: bool = False
    """Gathers equal shards into one tensor, and reduces or exchanges equal shards of one tensor."""

    coalesces_gathers: bool = False
    """Gathers the shards of many tensors in one call."""

    exchanges_sooner: bool = False
    """Exchanges shards in less time than it reduces them, whatever their dtype."""


FAST_CALLS = {
    ("nccl", "cuda"): FastCalls(
        averages=True, coalesces_all_reduces=True, launches_together=True, moves_shards=True, coalesces_gathers=True
    ),
    ("gloo", "cpu"): FastCalls(
        coalesces_all_reduces=True, moves_shards=True, coalesces_gathers=True, exchanges_sooner=True
    ),
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
    return FAST_CALLS.get((backend_of(group, device), device.type), FastCalls())


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """Return the name of the backend that the group uses for this device; nothing if it has none."""
    return _backends(dist.get_backend_config(group)).get(device.type, "")


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


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Group items of the same key, in the order of their first ones, which is the same on every rank."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def start_gathers(pairs: Sequence[tuple[Tensor, Tensor]], group: dist.ProcessGroup | None) -> list[Any]:
    """Start to gather, for each pair of a whole tensor and this rank's equal share of its rows; return the works.

    A share may be the rows of the whole tensor itself. All have one dtype and device, and are contiguous.
    """
    pairs = [(_sendable(whole), _sendable(share)) for whole, share in pairs]
    fast = fast_calls(group, pairs[0][0].device)
    if fast.coalesces_gathers and len(pairs) > 1:
        return private.all_gather_coalesced(pairs, group)
    if fast.moves_shards:
        return [private.all_gather_single(*pair, group=group, async_op=True) for pair in pairs]
    size = dist.get_world_size(group)
    return [dist.all_gather(list(whole.chunk(size)), share, group=group, async_op=True) for whole, share in pairs]


def _sendable(tensor: Tensor) -> Tensor:
    """View what backends may not know as bytes: gloo lacks float8, and it and NCCL lack some integers."""
    return tensor if tensor.is_floating_point() and tensor.itemsize > 1 else tensor.view(torch.uint8)


@dataclass(frozen=True)
class AverageOfRows:
    """Averages over the ranks that are under way, of this rank's rows of whole tensors."""

    works: Sequence[Any]
    num_bytes: int
    """Size of what is sent, whole."""

    _rows: Callable[[], list[Tensor]]

    def wait(self) -> list[Tensor]:
        """Wait for all calls, on CUDA make the current stream wait; return the averaged rows."""
        _wait(self.works)
        return self._rows()


Parts = tuple[Tensor, Tensor]
"""One rank's share of the rows of a tensor, and the other ranks' shares, stacked."""

Exchange = Callable[[Sequence[Tensor]], tuple[Sequence[Any], list[Parts]]]
"""Starts to collect this rank's share of the rows of every rank's tensors; returns the works, and where it collects."""


def start_average_of_rows(
    tensors: Sequence[Tensor], dtype: torch.dtype, group: dist.ProcessGroup | None, exchange: Exchange | None = None
) -> AverageOfRows:
    """Start to average tensors in `dtype`, and to give every rank an equal share of the rows of each, padded.

    They are summed in the wider of their own dtype and `dtype`. Tensors of a narrower one are sent as they are, and
    summed where they arrive: half the bytes of a reduction, in which every sum that is sent on would have to be wide.
    So are all with gloo, which reduces shards slowly, and with an `exchange` other than the group's. All have one dtype
    and device.
    """
    size, fast = dist.get_world_size(group), fast_calls(group, tensors[0].device)
    own = tensors[0].dtype
    wide = torch.promote_types(own, dtype)
    is_narrower = own.itemsize < wide.itemsize
    if exchange is None and fast.moves_shards and (is_narrower or fast.exchanges_sooner):
        exchange = functools.partial(_start_exchange, group=group, fast=fast)
    wholes = [_padded(tensor, size, own if exchange and is_narrower else wide) for tensor in tensors]
    num_bytes = sum(whole.nbytes for whole in wholes)
    if exchange:
        works, parts = exchange(wholes)
        return AverageOfRows(works, num_bytes, functools.partial(_means, parts, dtype))
    mine = [whole.new_empty(whole.shape[0] // size, *whole.shape[1:]) for whole in wholes]
    average = _start_reduction(list(zip(wholes, mine, strict=True)), group, fast)
    return AverageOfRows(average.works, num_bytes, functools.partial(_quotients, mine, average.divisor, dtype))


def _means(parts: Sequence[Parts], dtype: torch.dtype) -> list[Tensor]:
    """Return the mean in `dtype` of the shares of each tensor."""
    if parts[0][0].is_cuda:
        from cs336_systems.distributed.mean_kernel import DTYPES, mean_triton  # imported here: Triton may be missing

        if {dtype, parts[0][0].dtype}.issubset(DTYPES):
            return [mean_triton(*each, dtype) for each in parts]
    return [_mean(*each, dtype) for each in parts]


def _mean(first: Tensor, others: Tensor, dtype: torch.dtype) -> Tensor:
    wide = torch.promote_types(first.dtype, dtype)
    total = first.to(torch.promote_types(wide, torch.float32), copy=True)  # two of float16 may overflow
    for other in others:
        total.add_(other)
    return total.div_(1 + len(others)).to(dtype)


def _quotients(tensors: list[Tensor], divisor: int, dtype: torch.dtype) -> list[Tensor]:
    if divisor > 1:
        private.divide_each(tensors, divisor)
    return [tensor.to(dtype) for tensor in tensors]


def _start_exchange(
    wholes: Sequence[Tensor], group: dist.ProcessGroup | None, fast: FastCalls
) -> tuple[Sequence[Any], list[Parts]]:
    collected = [torch.empty_like(whole) for whole in wholes]

    def start() -> list[Any]:
        pairs = zip(collected, wholes, strict=True)
        return [dist.all_to_all_single(*pair, group=group, async_op=True) for pair in pairs]

    is_one_launch = fast.launches_together and len(wholes) > 1
    works = private.start_together(start, group, wholes[0].device) if is_one_launch else start()
    size = dist.get_world_size(group)
    stacked = [each.view(size, -1, *each.shape[1:]) for each in collected]
    return works, [(each[0], each[1:]) for each in stacked]


def _start_reduction(
    pairs: Sequence[tuple[Tensor, Tensor]], group: dist.ProcessGroup | None, fast: FastCalls
) -> Average:
    """Start to average, for each pair of a whole tensor and room for this rank's share of its rows."""
    operation, divisor = _operation(fast, group)
    if _overflows(pairs[0][0], divisor):
        pairs, divisor = [(whole / divisor, mine) for whole, mine in pairs], 1
    if fast.launches_together:
        return Average(private.reduce_scatter_coalesced(pairs, operation, group), divisor)
    works = []
    for whole, mine in pairs:
        for owner, rows in enumerate(whole.chunk(dist.get_world_size(group))):
            result = mine.copy_(rows) if owner == dist.get_rank(group) else rows.clone()  # undefined afterwards
            works.append(dist.reduce(result, global_rank(group, owner), operation, group, async_op=True))
    return Average(works, divisor)


def _padded(tensor: Tensor, num_ranks: int, dtype: torch.dtype) -> Tensor:
    """Return the tensor contiguous and in `dtype`, with zeros up to a multiple of `num_ranks` rows."""
    num_rows = -(-tensor.shape[0] // num_ranks) * num_ranks
    if tensor.shape[0] == num_rows:
        return materialized(tensor.to(dtype))
    room = tensor.new_empty(num_rows, *tensor.shape[1:], dtype=dtype)
    fill([room], [tensor])
    return room


@torch.no_grad()
def fill(rooms: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy each tensor to the first rows of its room, and zeros to the others."""
    filled = [first_rows(room, tensor.shape[0]) for room, tensor in zip(rooms, tensors, strict=True)]
    private.copy_each(filled, list(tensors))
    for room, tensor in zip(rooms, tensors, strict=True):
        if tensor.shape[0] < room.shape[0]:
            room[tensor.shape[0] :].zero_()


def first_rows(tensor: Tensor, num_rows: int) -> Tensor:
    """Return the tensor's first rows, or itself if that is all of them, which takes no view."""
    return tensor if tensor.shape[0] == num_rows else tensor[:num_rows]


def require_floating(**dtypes: object) -> None:
    """Raise `ValueError` for what is neither None nor a floating-point dtype in which backends and layers compute."""
    for name, dtype in dtypes.items():
        is_floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1
        if dtype is not None and not is_floating:
            raise ValueError(f"{name}={dtype!r} was given; allowed: a floating-point dtype of 16 bits or more, or None")


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
def _backends(description: str) -> dict[str, str]:
    """Map device types to backends, from torch's description of a group, for example "cpu:gloo,cuda:nccl"."""
    return dict(entry.split(":", 1) for entry in description.split(",") if ":" in entry)


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
