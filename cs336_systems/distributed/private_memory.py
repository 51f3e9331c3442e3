"""Private parts of torch by which GPUs share memory, and operations of a stream in it; `peers` falls back to NCCL."""

import functools
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.private import whole_group

_rendezvous: list[tuple[str, "weakref.ref[dist.ProcessGroup]"]] = []
"""Name and group of every `peer_memory` of this process."""


def num_rendezvous() -> int:
    """Return how often this process has called `peer_memory`.

    torch numbers the rendezvous of all groups of a process together (pytorch/pytorch#196082): ranks with different
    numbers would wait for each other until their store's timeout.
    """
    return len(_rendezvous)


def missing_for_peer_memory(group: dist.ProcessGroup | None) -> str:
    """Return what `peer_memory` and the operations in a stream lack here, without a fallback; nothing if they work."""
    whole = whole_group(group)
    earlier = [other() for name, other in _rendezvous if name == whole.group_name]
    if any(other is not whole for other in earlier):  # torch would answer from what it knows by the name
        return "an earlier process group of the same name has shared memory"
    try:
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed import _symmetric_memory

        _ = _SymmetricMemory.empty_strided_p2p, _symmetric_memory.rendezvous
        _ = _driver().cuMemcpyAsync, _driver().cuStreamWaitValue32, _driver().cuStreamWriteValue32
    except (ImportError, AttributeError) as error:
        return f"a library is missing or too old ({error})"
    return ""


def peer_memory(num_bytes: int, device: torch.device, group: dist.ProcessGroup | None) -> tuple[Tensor, Any]:
    """Allocate zeros on every rank's GPU, outside of torch's allocator; all ranks call it.

    Returns the memory and a handle, whose `get_buffer(rank, shape, dtype)` is a rank's part; both keep it.
    """
    from torch._C._distributed_c10d import _SymmetricMemory
    from torch.distributed import _symmetric_memory

    whole = whole_group(group)
    _rendezvous.append((whole.group_name, weakref.ref(whole)))
    # not `_symmetric_memory.empty`: its pool gives freed memory away again, at times that differ between the ranks
    memory = _SymmetricMemory.empty_strided_p2p((num_bytes,), (1,), torch.uint8, device)
    memory.zero_()
    torch.cuda.synchronize(device)
    return memory, _symmetric_memory.rendezvous(memory, whole)


def copy_in_stream(stream: torch.cuda.Stream, target: int, source: int, num_bytes: int) -> None:
    """Copy bytes between addresses on any GPUs when a stream comes to it. The stream's context must be current."""
    _require_success(_driver().cuMemcpyAsync(target, source, num_bytes, stream.cuda_stream))


def write_in_stream(stream: torch.cuda.Stream, address: int, value: int) -> None:
    """Write a 32-bit number, modulo 2^32, to any GPU's memory when a stream comes to it."""
    _require_success(_driver().cuStreamWriteValue32(stream.cuda_stream, address, value % 2**32, 0))


def wait_in_stream(stream: torch.cuda.Stream, address: int, value: int) -> None:
    """Make a stream wait, without a kernel, until a 32-bit number in memory is at least `value`, modulo 2^32."""
    _require_success(_driver().cuStreamWaitValue32(stream.cuda_stream, address, value % 2**32, 0))


@functools.cache
def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def _require_success(result: tuple[Any, ...]) -> None:
    if int(result[0]) != 0:
        raise RuntimeError(f"the CUDA driver answered {result[0]!r}")
