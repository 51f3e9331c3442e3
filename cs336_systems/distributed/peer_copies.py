"""Gathers and exchanges between the GPUs of one host by their copy engines, which leave the multiprocessors to matmuls.

NCCL moves data with kernels, which take multiprocessors from whatever computes beside them. Here a stream of every rank
copies into the memory of the other GPUs, and waits for the other ranks' streams by stream memory operations.
"""

import functools
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.distributed import private_memory
from cs336_systems.distributed.collectives import Parts

NUM_BYTES = 32 * 2**20
"""Memory in which a rank receives, which torch's allocator does not count."""

NUM_SLOTS = 2
"""Parts of it for each other rank, which one stream empties while another rank's stream fills the next."""

ALIGNMENT = 256
"""Bytes."""

FLAG_BYTES = 4

READY, TAKEN = 0, 1
"""Signals: the sender has filled its slot; the receiver has emptied it."""


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


class PeerStreams:
    """A stream that copies tensors into the other ranks' memory, and one that takes theirs out of this rank's.

    A rank has two slots for each other rank, which fills them in turn while the rank empties the one before. Signals
    are counters in the receiver's memory, which the sender's stream sets and the receiver's stream waits for.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device):
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self._device = device
        self._sending, self._receiving = (torch.cuda.Stream(device, priority=-1) for _ in range(2))
        self._works: list[PeerWork] = []
        self._memory, self._handle = private_memory.peer_memory(NUM_BYTES + 2 * self.size * FLAG_BYTES, device, group)
        shape = self._memory.shape
        self._rooms = [self._handle.get_buffer(rank, shape, torch.uint8).data_ptr() for rank in range(self.size)]
        self._slot_bytes = NUM_BYTES // NUM_SLOTS // (self.size - 1) // ALIGNMENT * ALIGNMENT
        self._round = 0
        self._sent = [[0] * self.size for _ in range(2)]
        self._awaited = [[0] * self.size for _ in range(2)]
        with torch.cuda.device(device):
            for rank in self.others * NUM_SLOTS:
                self._signal(self._receiving, TAKEN, rank)

    def start(self, outgoing: Sequence[Sequence[Tensor]], incoming: Sequence[Sequence[Tensor]]) -> PeerWork:
        """Start to copy the outgoing tensors for each other rank into those that come in there from this one.

        All are contiguous, and the n-th ones everywhere have the same size. The current stream may have written the
        outgoing ones; the work keeps all.
        """
        with torch.cuda.device(self._device):
            for stream in (self._sending, self._receiving):
                stream.wait_stream(torch.cuda.current_stream())  # and make the GPU's context current in this thread
            for pieces in rounds_of(tuple(each.nbytes for each in outgoing[self.others[0]]), self._slot_bytes):
                for rank in self.others:
                    self._send(rank, outgoing[rank], pieces)
                for rank in self.others:
                    self._receive(rank, incoming[rank], pieces)
                self._round += 1
            self._receiving.wait_stream(self._sending)
            work = PeerWork(self._receiving.record_event(), [*chain(*outgoing, *incoming)])
        self._works = [one for one in self._works if not one.has_ended()] + [work]
        return work

    def _send(self, rank: int, tensors: Sequence[Tensor], pieces: Sequence["Piece"]) -> None:
        self._await_signal(self._sending, TAKEN, rank)
        slot = self._slot(rank, self.rank)
        for number, start, num_bytes, place in pieces:
            private_memory.copy_in_stream(self._sending, slot + place, tensors[number].data_ptr() + start, num_bytes)
        self._signal(self._sending, READY, rank)

    def _receive(self, rank: int, tensors: Sequence[Tensor], pieces: Sequence["Piece"]) -> None:
        self._await_signal(self._receiving, READY, rank)
        slot = self._slot(self.rank, rank)
        for number, start, num_bytes, place in pieces:
            private_memory.copy_in_stream(self._receiving, tensors[number].data_ptr() + start, slot + place, num_bytes)
        self._signal(self._receiving, TAKEN, rank)

    def _slot(self, receiver: int, sender: int) -> int:
        """Return the address of this round's slot of the sender in the receiver's memory."""
        number = (sender - receiver - 1) % self.size * NUM_SLOTS + self._round % NUM_SLOTS
        return self._rooms[receiver] + number * self._slot_bytes

    def _signal(self, stream: torch.cuda.Stream, kind: int, rank: int) -> None:
        """Tell a rank when a stream has come to this point."""
        self._sent[kind][rank] += 1
        private_memory.write_in_stream(stream, self._flag(rank, kind, self.rank), self._sent[kind][rank])

    def _await_signal(self, stream: torch.cuda.Stream, kind: int, rank: int) -> None:
        """Make a stream wait for the next signal of a rank."""
        self._awaited[kind][rank] += 1
        private_memory.wait_in_stream(stream, self._flag(self.rank, kind, rank), self._awaited[kind][rank])

    def _flag(self, receiver: int, kind: int, sender: int) -> int:
        return self._rooms[receiver] + NUM_BYTES + (kind * self.size + sender) * FLAG_BYTES


class PeerCopies:
    """Gathers and exchanges of matrices' rows, which all ranks start in the same order.

    `copies_for` makes it where it works.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device):
        self.device = device
        self._group = group
        self._peers = PeerStreams(group, device)
        self._zero = torch.zeros(1, device=device)

    def serve(self, tensor: Tensor) -> bool:
        """Whether these copies are for the tensor's device."""
        return tensor.device == self.device

    def start_gathers(self, wholes: Sequence[Tensor]) -> PeerWork:
        """Start to fill whole matrices with the other ranks' equal shares of the rows; this rank's are there."""
        peers = self._peers
        parts = _by_rank(wholes, peers.size)
        return peers.start([parts[peers.rank]] * peers.size, parts)

    def start_exchange(self, wholes: Sequence[Tensor]) -> tuple[list[PeerWork], list[Parts]]:
        """Start to collect this rank's share of the rows of every rank's tensors, as `collectives.Exchange` does."""
        peers = self._peers
        outgoing = _by_rank(wholes, peers.size)
        mine = outgoing[peers.rank]
        others = [share.new_empty(len(peers.others), *share.shape) for share in mine]
        incoming = [mine] * peers.size
        for place, rank in enumerate(peers.others):
            incoming[rank] = [each[place] for each in others]
        return [peers.start(outgoing, incoming)], list(zip(mine, others, strict=True))

    def watch(self) -> None:
        """Start a collective after all copies that the current stream waits for: a stream alone would wait forever.

        If a rank never comes, NCCL ends this process after the group's timeout.
        """
        dist.all_reduce(self._zero, group=self._group, async_op=True)


def _by_rank(wholes: Sequence[Tensor], size: int) -> list[list[Tensor]]:
    """Return each rank's equal share of the rows of all."""
    return [list(shares) for shares in zip(*(whole.chunk(size) for whole in wholes), strict=True)]


class Piece(NamedTuple):
    """Some bytes of one of several tensors, and where in a slot they lie."""

    tensor: int
    start: int
    num_bytes: int
    place: int


@functools.lru_cache(maxsize=1024)
def rounds_of(sizes: tuple[int, ...], limit: int) -> list[list[Piece]]:
    """Cut tensors of these bytes into pieces; return as many at a time as fit into `limit`, which is aligned."""
    rounds, pieces, end = list[list[Piece]](), list[Piece](), 0
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            if end == limit:
                rounds.append(pieces)
                pieces, end = [], 0
            num_bytes = min(size - start, limit - end)
            pieces.append(Piece(tensor, start, num_bytes, end))
            start += num_bytes
            end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return [*rounds, pieces] if pieces else rounds
