"""Process groups: a function on ranks of this host, each in a process of its own; and who is who in a sub-group."""

import contextlib
import datetime
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HOST = "127.0.0.1"


def spawn(
    function: Callable[..., Any], world_size: int, *args: Any, backend: str = "gloo", timeout_s: float = 60.0
) -> list[Any]:
    """`function(rank, *args)` on `world_size` ranks with a default process group; their results in order of rank.

    The first rank that raises ends the others, and its traceback is raised here (`ProcessRaisedException`). Ranks die
    with this process. The rendezvous takes a free port. `function` is importable; its result can be saved by torch.
    """
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    get_context("forkserver").set_forkserver_preload([__name__])  # torch is imported once, not by every rank
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        rank_args = (function, world_size, args, backend, timeout_s, store.port, folder)
        mp.start_processes(_run_rank, rank_args, nprocs=world_size, start_method="forkserver")
        return [torch.load(_result(folder, rank), weights_only=False) for rank in range(world_size)]


@contextlib.contextmanager
def process_group(rank: int, world_size: int, store: dist.Store, backend: str, timeout_s: float) -> Iterator[None]:
    """The default process group, and this rank's GPU as the current device for NCCL; gone at the end."""
    device = torch.device("cuda", rank) if backend == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=device)
    try:
        yield
    finally:
        dist.destroy_process_group()


def global_rank(group: dist.ProcessGroup | None, rank: int) -> int:
    """Of rank `rank` of a group: what torch.distributed takes as a source or destination."""
    return rank if group is None else dist.get_global_rank(group, rank)


def backend_averages(group: dist.ProcessGroup | None) -> bool:
    """Whether the backend divides a sum by the number of ranks itself; gloo does not in every version of torch."""
    return dist.get_backend(group) == "nccl"


@dataclass
class Traffic:
    """Collectives that were called, and the bytes handed to them."""

    calls: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int) -> None:
        """One more call."""
        self.calls += 1
        self.num_bytes += num_bytes


def run_together(
    collective: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], group: dist.ProcessGroup | None, **kwargs: Any
) -> None:
    """`collective(*one, group=group, **kwargs)` for each of `arguments`, at once: one launch with NCCL; then wait."""
    if not arguments:
        return
    if dist.get_backend(group) == "nccl":
        with dist._coalescing_manager(group, device=arguments[0][0].device, async_ops=True) as together:
            for one in arguments:
                collective(*one, group=group, async_op=True, **kwargs)
        together.wait()
    else:
        for work in [collective(*one, group=group, async_op=True, **kwargs) for one in arguments]:
            work.wait()


def _run_rank(
    rank: int,
    function: Callable[..., Any],
    world_size: int,
    args: tuple[Any, ...],
    backend: str,
    timeout_s: float,
    port: int,
    folder: str,
) -> None:
    torch.set_num_threads(1)  # ranks share the cores
    store = dist.TCPStore(HOST, port, is_master=False, timeout=datetime.timedelta(seconds=timeout_s))
    with process_group(rank, world_size, store, backend, timeout_s):
        torch.save(function(rank, *args), _result(folder, rank))


def _result(folder: str, rank: int) -> Path:
    return Path(folder, f"{rank}.pt")
