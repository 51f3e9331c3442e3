"""Process groups: a function on ranks of this host, each in a process of its own; and who is who in a sub-group."""

import contextlib
import datetime
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def spawn(
    function: Callable[..., Any], world_size: int, *args: Any, backend: str = "gloo", timeout_s: float = 60.0
) -> list[Any]:
    """`function(rank, *args)` on `world_size` ranks with a default process group; their results in order of rank.

    The first rank that raises ends the others, and its traceback is raised here (`ProcessRaisedException`). No rank
    outlives this call, even if that is interrupted or killed. Ranks meet through a file: any number of calls may run
    at once. `function` is importable; its result can be saved by torch. Ranks have the variables of the shell as
    they were at the first call.
    """
    get_context("forkserver").set_forkserver_preload([__name__])  # torch is imported once, not by every rank
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        rank_args = (function, world_size, args, backend, timeout_s, folder)
        ranks = mp.start_processes(_run_rank, rank_args, nprocs=world_size, join=False, start_method="forkserver")
        try:
            while not ranks.join():
                pass
        finally:  # Ctrl-C reaches no rank that is blocked in a collective
            for process in ranks.processes:
                process.kill()
                process.join()
        return [torch.load(_result(folder, rank), weights_only=False) for rank in range(world_size)]


@contextlib.contextmanager
def process_group(rank: int, world_size: int, store: dist.Store, backend: str, timeout_s: float) -> Iterator[None]:
    """The default process group, and this rank's GPU as the current device for NCCL; gone at the end.

    An error leaves it: gloo is destroyed only when its collectives end, which others may never enter.
    """
    device = torch.device("cuda", rank) if "nccl" in backend else None
    if device is not None:
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=device)
    dist.barrier()  # a rank that ends at once would close connections that others are still making
    yield
    dist.destroy_process_group()


def global_rank(group: dist.ProcessGroup | None, rank: int) -> int:
    """Of rank `rank` of a group: what torch.distributed takes as a source or destination."""
    return rank if group is None else dist.get_global_rank(group, rank)


@contextlib.contextmanager
def failing_together(group: dist.ProcessGroup | None) -> Iterator[None]:
    """What some ranks raise inside becomes the same `RuntimeError` on all of the group, with the first one's words."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    every = [""] * dist.get_world_size(group)
    dist.all_gather_object(
        every, f"rank {dist.get_rank()}: {type(error).__name__}: {error}" if error else "", group=group
    )
    if any(every):
        raise RuntimeError(next(filter(None, every))) from error


def _run_rank(
    rank: int,
    function: Callable[..., Any],
    world_size: int,
    args: tuple[Any, ...],
    backend: str,
    timeout_s: float,
    folder: str,
) -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # ranks share the cores
    store = dist.FileStore(str(Path(folder, "store")), world_size)  # TCPStore asks DNS for 127.0.0.1: up to 5 s
    store.set_timeout(datetime.timedelta(seconds=timeout_s))
    try:
        with process_group(rank, world_size, store, backend, timeout_s):
            torch.save(function(rank, *args), _result(folder, rank))
    except Exception:
        if store.add("raised", 1) > 1:  # perhaps only because the first one left: that one is to be reported
            threading.Event().wait(timeout_s)  # spawn ends this rank
        raise


def _leave_with_parent() -> None:
    """Even if this rank is blocked in a collective, where no signal reaches Python."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _result(folder: str, rank: int) -> Path:
    return Path(folder, f"{rank}.pt")
