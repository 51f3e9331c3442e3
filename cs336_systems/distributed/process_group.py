"""Process groups: run a function on ranks of this host, one process each, and translate ranks of sub-groups."""

import contextlib
import datetime
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cs336_systems import private
from cs336_systems.checks import require_at_least

T = TypeVar("T")


def spawn(
    function: Callable[..., Any], world_size: int, *args: Any, backend: str = "gloo", timeout_s: float = 60.0
) -> list[Any]:
    """Run `function(rank, *args)` on `world_size` ranks with a default process group; return results by rank.

    The first rank that raises ends the others, and its traceback is raised here (`ProcessRaisedException`). No rank
    outlives this call, even if the call is interrupted or killed. Ranks rendezvous through a file, so calls may run
    concurrently. `function` must be importable and its result one that `torch.save` can write. Ranks see the
    shell's variables as of the first call.

    Raises `ValueError` for a world_size below 1 or, with NCCL, above the number of GPUs, and `RuntimeError` for a rank
    that exits without an error or a result.
    """
    require_at_least(1, world_size=world_size)
    if "nccl" in backend and world_size > (gpus := torch.cuda.device_count()):
        raise ValueError(f"world_size={world_size} was given; allowed with {backend}: a GPU for each rank, here {gpus}")
    get_context("forkserver").set_forkserver_preload([__name__])  # import torch once instead of in every rank
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        rank_args = (function, world_size, args, backend, timeout_s, folder)
        ranks = mp.start_processes(_run_rank, rank_args, nprocs=world_size, join=False, start_method="forkserver")
        private.hide_from_other_threads(ranks.processes)
        try:
            while not ranks.join():
                pass
        finally:  # Ctrl-C does not reach a rank that is blocked in a collective
            for process in ranks.processes:
                if process.is_alive():  # the server reaps its processes, so another may have the number of a dead one
                    process.kill()
                process.join()
        for rank in range(world_size):
            if not _result(folder, rank).exists():
                raise RuntimeError(f"rank {rank} exited without a result; allowed: a function that returns or raises")
        return [torch.load(_result(folder, rank), weights_only=False) for rank in range(world_size)]


@contextlib.contextmanager
def process_group(rank: int, world_size: int, store: dist.Store, backend: str, timeout_s: float) -> Iterator[None]:
    """Create the default process group, with this rank's GPU as current device for NCCL, and destroy it on exit.

    An error leaves the group as it is: destroying gloo waits for collectives that other ranks may never enter.
    """
    device = torch.device("cuda", rank) if "nccl" in backend else None
    if device is not None:
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=device)
    dist.barrier()  # a rank that ended at once would close connections that others are still opening
    yield
    dist.destroy_process_group()


def global_rank(group: dist.ProcessGroup | None, rank: int) -> int:
    """Translate a rank of a group to the global rank that torch.distributed takes as source or destination."""
    return rank if group is None else dist.get_global_rank(group, rank)


def from_all_ranks(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return every rank's value, the same list on all of them; the values are pickled."""
    every = [value] * dist.get_world_size(group)
    dist.all_gather_object(every, value, group=group)
    return every


def require_member(group: dist.ProcessGroup | None) -> None:
    """Raise `ValueError` if this rank is not in the group, whose collectives would do nothing here."""
    if dist.get_rank(group) < 0:
        raise ValueError("a process_group without this rank was given; allowed: on its own ranks alone")


def new_group_like(
    group: dist.ProcessGroup | None, device: torch.device, backend: str | None = None
) -> dist.ProcessGroup:
    """Create another group of the ranks of `group`, with its timeout on `device` and, unless given, its backend.

    Collectives of gloo wait for no GPU, those of another NCCL group have a stream of their own. Returns `group` itself
    where torch would split all ranks' communicator for some of them: the others would have to take part.
    """
    timeout = private.timeout_of(group, device)
    if group is None or group is dist.group.WORLD:
        return dist.new_group(None, timeout, backend)
    if backend is None:
        if private.splits_communicators() and dist.get_world_size(group) < dist.get_world_size():
            return group
        backend = dist.get_backend_config(group)
    name = from_all_ranks(uuid.uuid4().hex, group)[0]  # whatever other groups each of its ranks is in
    return private.new_group_named(name, dist.get_process_group_ranks(group), timeout, backend)


@contextlib.contextmanager
def refusing_together(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Raise what is raised inside, and on the other ranks of the group a `RuntimeError` with the first rank's message.

    The messages are pickled and gathered, which takes too long for a step.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    messages = from_all_ranks(_message(error), group)
    if error is not None:
        raise error
    if any(messages):
        raise RuntimeError(next(filter(None, messages)))


@contextlib.contextmanager
def failing_together(group: dist.ProcessGroup, flags: list[bool] | None = None) -> Iterator[None]:
    """Raise the same `RuntimeError` on all ranks of a CPU group if any raises inside, with the first rank's message.

    Otherwise set each of `flags` that any rank has set.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    flags = [] if flags is None else flags
    has_failed, *flags[:] = tell([error is not None, *flags], group)()
    if has_failed:
        raise_first(error, group)


def tell(flags: list[bool], group: dist.ProcessGroup) -> Callable[[], list[bool]]:
    """Start to tell the ranks of a CPU group which flags are set here; return what waits for those set on any rank.

    One all-reduce of a byte for each flag, since this is a part of every step.
    """
    status = torch.tensor(flags, dtype=torch.uint8, device="cpu")
    work = dist.all_reduce(status, dist.ReduceOp.MAX, group=group, async_op=True)

    def wait() -> list[bool]:
        work.wait()
        return [bool(flag) for flag in status.tolist()]

    return wait


def raise_first(error: Exception | None, group: dist.ProcessGroup) -> NoReturn:
    """Raise the `RuntimeError` of `failing_together` on every rank, of which some have an error."""
    raise RuntimeError(next(filter(None, from_all_ranks(_message(error), group)))) from error


def _message(error: Exception | None) -> str:
    """Name this rank and its error; nothing if it has none."""
    if error is None:
        return ""
    kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
    return f"rank {dist.get_rank()}: {kind}{error}"


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
        if store.add("raised", 1) > 1:  # perhaps a consequence of the first error, which is the one to report
            threading.Event().wait(timeout_s)  # until spawn ends this rank
        raise


def _leave_with_parent() -> None:
    """End this process when its parent ends, even while it is blocked in a collective, where no signal arrives."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _result(folder: str, rank: int) -> Path:
    return Path(folder, f"{rank}.pt")
