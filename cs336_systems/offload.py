"""Host memory for what autograd saves, fetched back one group of tensors ahead of its use."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class _Entry:
    group: int
    device: torch.device
    host: Tensor
    fetched: Tensor | None = None
    arrival: torch.cuda.Event | None = None


class Offload:
    """Host copies of saved tensors, by `saved_tensors_hooks(offload.pack, offload.unpack)`: pinned memory on CUDA.

    Copies run on a stream of their own, out during the forward and back during the backward. The backward visits the
    groups from the last to the first: the first use of a group frees what was fetched of later ones and starts to fetch
    the group before it. One object serves one forward. Copies are not captured into CUDA graphs.
    """

    def __init__(self) -> None:
        self._groups: list[list[_Entry]] = [[]]
        self._at = -1

    @property
    def num_bytes(self) -> int:
        """Bytes on the host."""
        return sum(entry.host.nbytes for group in self._groups for entry in group)

    def begin_group(self) -> None:
        """Begin the next group of tensors, which are needed together."""
        self._groups.append([])

    def pack(self, tensor: Tensor) -> _Entry:
        """Copy a tensor to the host."""
        on_cuda = tensor.is_cuda
        host = torch.empty_like(tensor, device="cpu", pin_memory=on_cuda)
        with _copying(tensor.device):
            host.copy_(tensor, non_blocking=on_cuda)
        if on_cuda:
            tensor.record_stream(_stream(tensor.device))
        entry = _Entry(len(self._groups) - 1, tensor.device, host)
        self._groups[-1].append(entry)
        return entry

    def unpack(self, entry: _Entry) -> Tensor:
        """Return the tensor on its device, and prepare for the group before its own."""
        if entry.group != self._at or entry.fetched is None:
            self._move_to(entry.group)
        if entry.arrival is not None:
            torch.cuda.current_stream(entry.device).wait_event(entry.arrival)
        assert entry.fetched is not None
        return entry.fetched

    def _move_to(self, at: int) -> None:
        self._at = at
        for number, group in enumerate(self._groups):
            for entry in group:
                if number not in (at - 1, at):
                    entry.fetched = None
        for number in (at, at - 1):
            for entry in self._groups[number] if number >= 0 else ():
                if entry.fetched is None:
                    _fetch(entry)


def _fetch(entry: _Entry) -> None:
    on_cuda = entry.device.type == "cuda"
    entry.fetched = torch.empty_like(entry.host, device=entry.device)
    with _copying(entry.device):
        entry.fetched.copy_(entry.host, non_blocking=on_cuda)
        entry.arrival = torch.cuda.current_stream(entry.device).record_event() if on_cuda else None
    if on_cuda:
        entry.fetched.record_stream(_stream(entry.device))


_streams: dict[torch.device, Any] = {}


def _stream(device: torch.device) -> Any:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def _copying(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which copies run beside the device's work, after all that was launched until now."""
    if device.type != "cuda":
        return nullcontext()
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
