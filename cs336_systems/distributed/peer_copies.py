"""Gathers and exchanges between the GPUs of one host by their copy engines, which leave the multiprocessors to matmuls.

NCCL moves data with kernels, which take multiprocessors from whatever computes beside them. Here a stream of every rank
copies from and to the memory of the other GPUs, and waits for the other ranks' streams by stream memory operations.
"""

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.distributed import private
from cs336_systems.distributed.collectives import backend_of, fill

ALIGNMENT = 256
"""Bytes."""

READY, TAKEN = 0, 1
"""Signals: the sender has data to be read, or has written them; the receiver has read them, or has room."""


def device_of_copies(
    requested: bool | None, tensors: Iterable[Tensor], group: dist.ProcessGroup | None
) -> torch.device | None:
    """Return the GPU that is to copy tensors like these; None where collectives are to move them.

    None requests the copy engines where they can serve. All ranks call it, and agree. Raises `ValueError` where they
    cannot but are requested.
    """
    if not (requested is None or isinstance(requested, bool)):
        raise ValueError(f"copy_engines={requested!r} was given; allowed: True, False, None")
    if requested is False:
        return None
    devices = {tensor.device for tensor in tensors}
    device = devices.pop() if len(devices) == 1 else None
    why_not = _why_not(device, group)
    if requested and why_not:
        raise ValueError(f"copy_engines=True was given, but {why_not}; allowed: False or None")
    return None if why_not else device


def _why_not(device: torch.device | None, group: dist.ProcessGroup | None) -> str:
    """Return why copies between the ranks' devices are impossible, the same on every rank; nothing if they are not."""
    why_not, uuid, visible = _own_reason(device, group), "", set[str]()
    if device and not why_not:
        gpus = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
        uuid, visible = gpus[device.index], set(gpus)
    every: list[tuple[str, str, str, set[str]]] = [("", "", "", set())] * dist.get_world_size(group)
    dist.all_gather_object(every, (why_not, _host(), uuid, visible), group=group)
    reasons, hosts, uuids, sights = zip(*every, strict=True)
    if any(reasons):
        return next(filter(None, reasons))
    if len(set(hosts)) > 1:
        return "the ranks are on several hosts"
    if len(set(uuids)) < len(uuids):
        return "ranks share a GPU"
    if not all(visible.issuperset(uuids) for visible in sights):
        return "a rank does not see the other ranks' GPUs"
    return ""


def _own_reason(device: torch.device | None, group: dist.ProcessGroup | None) -> str:
    if device is None or device.type != "cuda":
        return "the model is not on one GPU"
    if dist.get_world_size(group) == 1:
        return "there is one rank"
    if (backend := backend_of(group, device)) != "nccl":
        return f"the backend is {backend}"
    return private.missing_for_peer_memory()


def _host() -> str:
    """Name this host, or this container, whose processes can open one another's memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text(encoding='ascii') if boot.exists() else ''}"


class PeerWork:
    """Copies under way."""

    def __init__(self, event: torch.cuda.Event, tensors: Sequence[Tensor]):
        self._event = event
        self._tensors = tensors
        """Read or written by the copies, so that the allocator must not give them away."""

    def wait(self) -> None:
        """Make the current stream wait for the copies."""
        torch.cuda.current_stream().wait_event(self._event)
        self._tensors = ()  # whoever uses their memory next does so in this stream

    def has_ended(self) -> bool:
        """Whether nobody has to keep the tensors any longer."""
        return not self._tensors or self._event.query()


class PeerStream:
    """A stream, memory in which the other ranks read or write, and signals between the ranks' streams.

    A signal is a counter in the receiver's memory, which the sender's stream sets and the receiver's stream waits for.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.num_bytes = 0
        """Size of the memory."""

        self._group, self._device = group, device
        self._works: list[PeerWork] = []
        shape = (2, self.size)
        _, flags = self._held_flags = private.peer_memory(shape, torch.int32, device, group)
        self._flags = [flags.get_buffer(rank, shape, torch.int32) for rank in range(self.size)]
        self._sent = [[0] * self.size for _ in range(2)]
        self._awaited = [[0] * self.size for _ in range(2)]

    def reserve(self, num_bytes: int) -> None:
        """Have at least `num_bytes` of memory. All ranks call it with the same number."""
        if num_bytes > self.num_bytes:
            torch.cuda.synchronize(self._device)  # so no rank uses the old memory when all have come here
            self._memory, self._handle = private.peer_memory((num_bytes,), torch.uint8, self._device, self._group)
            self.num_bytes = num_bytes

    def place(self, rank: int, offset: int, like: Tensor) -> Tensor:
        """Return a part of a rank's memory with a tensor's shape and dtype, from an offset in bytes."""
        return self._handle.get_buffer(rank, tuple(like.shape), like.dtype, offset // like.dtype.itemsize)

    def signal(self, kind: int, rank: int) -> None:
        """Tell a rank that the current stream has come to this point."""
        self._sent[kind][rank] += 1
        private.write_in_stream(self._flags[rank][kind, self.rank], self._sent[kind][rank])

    def await_signal(self, kind: int, rank: int) -> None:
        """Make the current stream wait for the next signal of a rank."""
        self._awaited[kind][rank] += 1
        private.wait_in_stream(self._flags[self.rank][kind, rank], self._awaited[kind][rank])

    def started(self, tensors: Sequence[Tensor]) -> PeerWork:
        """Return the work of all copies so far, which keeps tensors until it has been waited for or has ended."""
        work = PeerWork(self.stream.record_event(), tensors)
        self._works = [one for one in self._works if not one.has_ended()] + [work]
        return work


class PeerCopies:
    """Gathers and exchanges of matrices' rows, each in a stream of its own.

    All ranks start the same gathers in the same order, and the same exchanges. `device_of_copies` tells where it works.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        self.device = device
        self._group = group
        self._gathers, self._exchanges = PeerStream(group, device), PeerStream(group, device)
        self._copied: torch.cuda.Event | None = None
        """After the copy of this rank's own rows in the last gather."""

        self._zero = torch.zeros(1, device=device)

    def serve(self, tensor: Tensor) -> bool:
        """Whether these copies are for the tensor's device."""
        return tensor.device == self.device

    @property
    def num_bytes(self) -> int:
        """Memory for copies under way, which torch's allocator does not count."""
        return self._gathers.num_bytes + self._exchanges.num_bytes

    def start_gathers(self, wholes: Sequence[Tensor], shares: Sequence[Tensor]) -> PeerWork:
        """Start to fill whole matrices with all ranks' shares of their rows, cast to their dtype and padded by zeros.

        Every rank casts its shares into its own memory, from which the others pull them.
        """
        peers = self._gathers
        parts = [whole.chunk(peers.size) for whole in wholes]
        offsets, end = _offsets([part[0].nbytes for part in parts])
        peers.reserve(end)
        if self._copied:
            torch.cuda.current_stream().wait_event(self._copied)
            for rank in peers.others:
                peers.await_signal(TAKEN, rank)
        mine = [peers.place(peers.rank, at, part[0]) for at, part in zip(offsets, parts, strict=True)]
        fill(mine, shares)
        peers.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(peers.stream), torch.no_grad():
            for rank in peers.others:
                peers.signal(READY, rank)
            for part, share in zip(parts, mine, strict=True):
                part[peers.rank].copy_(share)
            self._copied = peers.stream.record_event()
            for rank in peers.others:
                peers.await_signal(READY, rank)
                for at, part in zip(offsets, parts, strict=True):
                    part[rank].copy_(peers.place(rank, at, part[rank]))
                peers.signal(TAKEN, rank)
        return peers.started(wholes)

    def start_exchange(self, wholes: Sequence[Tensor]) -> tuple[list[PeerWork], list[Tensor]]:
        """Start to collect this rank's share of the rows of every rank's tensors, as `collectives.Exchange` does.

        The next exchange collects in the same memory, and must start in a stream in which this one's has been read.
        """
        peers = self._exchanges
        parts = [whole.chunk(peers.size) for whole in wholes]
        offsets, end = _offsets([whole.nbytes for whole in wholes])
        peers.reserve(end)
        collected = [peers.place(peers.rank, at, whole) for at, whole in zip(offsets, wholes, strict=True)]
        peers.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(peers.stream), torch.no_grad():
            for rank in peers.others:
                peers.signal(TAKEN, rank)
            for part, room in zip(parts, collected, strict=True):
                room.chunk(peers.size)[peers.rank].copy_(part[peers.rank])
            for rank in peers.others:
                peers.await_signal(TAKEN, rank)
                for at, part in zip(offsets, parts, strict=True):
                    peers.place(rank, at + peers.rank * part[rank].nbytes, part[rank]).copy_(part[rank])
                peers.signal(READY, rank)
            for rank in peers.others:
                peers.await_signal(READY, rank)
        return [peers.started(wholes)], collected

    def watch(self) -> None:
        """Start a collective after all copies that the current stream waits for: a stream alone would wait forever.

        If a rank never comes, NCCL ends this process after the group's timeout.
        """
        dist.all_reduce(self._zero, group=self._group, async_op=True)


def _offsets(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return where pieces of these bytes begin, and where the last one ends."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, end
