"""Whether the GPUs of all ranks can copy into one another's memory."""

import socket
from collections.abc import Iterable, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.distributed import private_memory
from cs336_systems.distributed.collectives import backend_of
from cs336_systems.distributed.peer_copies import PeerCopies
from cs336_systems.distributed.process_group import from_all_ranks


def copies_for(requested: bool | None, tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> PeerCopies | None:
    """Return what copies tensors like these between the ranks; None where collectives are to move them.

    None requests the copy engines where they can serve. All ranks call it, and agree. Raises `ValueError` where they
    cannot but are requested.
    """
    if not (requested is None or isinstance(requested, bool)):
        raise ValueError(f"copy_engines={requested!r} was given; allowed: True, False, None")
    if requested is False:
        return None
    devices = {tensor.device for tensor in tensors}
    device = devices.pop() if len(devices) == 1 else None
    copies, why_not = None, _why_not(device, group)
    if device and not why_not:
        copies, why_not = _shared(device, group)
    if requested and why_not:
        raise ValueError(f"copy_engines=True was given, but {why_not}; allowed: False or None")
    return copies


def _shared(device: torch.device, group: dist.ProcessGroup | None) -> tuple[PeerCopies | None, str]:
    """Share memory with the other ranks; return what copies, or why some rank could not, the same on every rank."""
    copies, failure = None, ""
    try:
        copies = PeerCopies(group, device)
    except RuntimeError as error:  # as where a container may not pass memory to another process
        failure = f"memory cannot be shared: {str(error).partition(chr(10))[0]}"
    why_not = next(filter(None, from_all_ranks(failure, group)), "")
    return None if why_not else copies, why_not


class RankFacts(NamedTuple):
    """What decides about copies, of one rank."""

    why_not: str
    """Its own reason, if it has any."""

    host: str = ""
    gpu: str = ""
    """UUID of its GPU."""

    visible: frozenset[str] = frozenset()
    """UUIDs of the GPUs that it sees."""

    num_rendezvous: int = 0
    """Times that it has shared memory with other ranks, of any group."""


def _why_not(device: torch.device | None, group: dist.ProcessGroup | None) -> str:
    """Return why copies between the ranks' devices are impossible, the same on every rank; nothing if they are not."""
    facts, gpus = RankFacts(_own_reason(device, group)), list[str]()
    if device and not facts.why_not:
        gpus = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
        facts = RankFacts("", _host(), gpus[device.index], frozenset(gpus), private_memory.num_rendezvous())
    ranks = from_all_ranks(facts, group)
    if reason := obstacle(ranks):
        return reason
    indices = [gpus.index(rank.gpu) for rank in ranks]
    if not all(torch.cuda.can_device_access_peer(*pair) for pair in permutations(indices, 2)):
        return "a GPU has no access to another one's memory"
    return ""


def obstacle(ranks: Sequence[RankFacts]) -> str:
    """Return why copies between these ranks are impossible; nothing if the ranks know of no reason."""
    own, hosts, gpus, visible, num_rendezvous = zip(*ranks, strict=True)
    if any(own):
        return next(filter(None, own))
    if len(set(hosts)) > 1:
        return "the ranks are on several hosts"
    if len(set(gpus)) < len(gpus):
        return "ranks share a GPU"
    if not all(seen.issuperset(gpus) for seen in visible):
        return "a rank does not see the other ranks' GPUs"
    if len(set(num_rendezvous)) > 1:  # torch, which numbers those of all groups together, would wait for ever
        return "some of the ranks have shared memory in a group without the others before"
    return ""


def _own_reason(device: torch.device | None, group: dist.ProcessGroup | None) -> str:
    if device is None or device.type != "cuda":
        return "the model is not on one GPU"
    if dist.get_world_size(group) == 1:
        return "there is one rank"
    if (backend := backend_of(group, device)) != "nccl":
        return f"the backend is {backend}"
    return private_memory.missing_for_peer_memory(group)


def _host() -> str:
    """Name this host, or this container, whose processes can open one another's memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text(encoding='ascii') if boot.exists() else ''}"
