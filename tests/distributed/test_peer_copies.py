"""Copies between GPUs, here between simulated streams. Whole steps with real ones are in test_fsdp_features.py."""

import contextlib
import ctypes
import itertools
import random
from collections import deque
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from cs336_systems.distributed import peer_copies, private_memory
from cs336_systems.distributed.peer_copies import ALIGNMENT, PeerCopies, rounds_of


@pytest.mark.parametrize("sizes", [[], [0], [1], [512], [513], [0, 5, 0, 7], [100] * 9, [1, 3000, 2], [256, 256, 256]])
@pytest.mark.parametrize("limit", [ALIGNMENT, 2 * ALIGNMENT, 8 * ALIGNMENT])
def test_rounds_hold_every_byte_once_in_places_of_their_own(sizes, limit):
    sent = [torch.arange(size) for size in sizes]
    received = [torch.full_like(each, -1) for each in sent]
    for pieces in rounds_of(tuple(sizes), limit):
        assert pieces
        slot = torch.full((limit,), -1)
        for tensor, start, num_bytes, place in pieces:
            room = slot[place : place + num_bytes]
            assert place % ALIGNMENT == 0 and (room == -1).all()
            room.copy_(sent[tensor][start : start + num_bytes])
        for tensor, start, num_bytes, place in pieces:
            assert (received[tensor][start : start + num_bytes] == -1).all()
            received[tensor][start : start + num_bytes] = slot[place : place + num_bytes]
    assert all(torch.equal(*pair) for pair in zip(sent, received, strict=True))


def test_small_tensors_travel_together():
    assert len(rounds_of((10,) * 8, 8 * ALIGNMENT)) == 1


class Simulation:
    """Streams of several ranks in one process, which do one operation at a time, of any stream that need not wait."""

    def __init__(self, monkeypatch, num_bytes):
        self.streams, self.memory = [], {}
        simulated = self

        class Stream:
            def __init__(self, *_, **__):
                self.num_done, self.queue = 0, deque()
                simulated.streams.append(self)

            def wait_stream(self, other):
                if other:  # the current stream does everything at once
                    number = other.num_done + len(other.queue)
                    self.queue.append((lambda: other.num_done >= number, lambda: None))

            def record_event(self):
                number = self.num_done + len(self.queue)
                return SimpleNamespace(query=lambda: self.num_done >= number)

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
        monkeypatch.setattr(dist, "get_rank", lambda group: group.rank)
        monkeypatch.setattr(dist, "get_world_size", lambda group: group.size)
        monkeypatch.setattr(peer_copies, "NUM_BYTES", num_bytes)
        for name in ("peer_memory", "copy_in_stream", "write_in_stream", "wait_in_stream"):
            monkeypatch.setattr(private_memory, name, getattr(self, name))

    def peer_memory(self, num_bytes, device, group):
        number = next(group.allocations)

        def get_buffer(rank, *_):
            return self.memory.setdefault((number, rank), torch.zeros(num_bytes, dtype=torch.uint8))

        return get_buffer(group.rank), SimpleNamespace(get_buffer=get_buffer)

    def copy_in_stream(self, stream, target, source, num_bytes):
        self._do(stream, lambda: ctypes.memmove(target, source, num_bytes))

    def write_in_stream(self, stream, address, value):
        def write():
            ctypes.c_int32.from_address(address).value = value

        self._do(stream, write)

    def wait_in_stream(self, stream, address, value):
        self._do(stream, lambda: None, lambda: ctypes.c_int32.from_address(address).value >= value)

    def _do(self, stream, what, may=lambda: True):
        stream.queue.append((may, what))

    def run(self, order):
        while any(stream.queue for stream in self.streams):
            ready = [stream for stream in self.streams if stream.queue and stream.queue[0][0]()]
            assert ready, "every stream waits"
            stream = order.choice(ready)
            stream.queue.popleft()[1]()
            stream.num_done += 1


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("num_bytes", [2**11, 2**16], ids=["in_pieces", "at_once"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_rows_arrive_in_whatever_order_the_streams_work(monkeypatch, size, num_bytes, order):
    simulation = Simulation(monkeypatch, num_bytes)
    groups = [SimpleNamespace(rank=rank, size=size, allocations=itertools.count()) for rank in range(size)]
    copies = [PeerCopies(group, torch.device("cpu")) for group in groups]
    shapes = [[(size, 5), (3 * size, 70)], [(size, 1)], [(2 * size, 200), (size, 3)]]
    gathered, exchanged = [], []
    for tensors in shapes:
        wholes = [torch.randn(shape) for shape in tensors]
        gradients = [[torch.randn(shape) for shape in tensors] for _ in groups]
        for rank, mine in enumerate(copies):
            partial = [torch.full_like(whole, torch.nan) for whole in wholes]
            for part, whole in zip(partial, wholes, strict=True):
                part.chunk(size)[rank].copy_(whole.chunk(size)[rank])
            mine.start_gathers(partial)
            gathered.append((partial, wholes))
            _, collected = mine.start_exchange(gradients[rank])
            shares = [[each.chunk(size)[rank] for each in every] for every in zip(*gradients, strict=True)]
            others = [torch.stack([*each[rank + 1 :], *each[:rank]]) for each in shares]
            exchanged.append((collected, list(zip((each[rank] for each in shares), others, strict=True))))
    simulation.run(random.Random(order))
    for found, expected in gathered + exchanged:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
