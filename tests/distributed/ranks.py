"""Ranks for tests: processes that stay, and a new process group for every call.

A new process takes 0.5 to 2 s to start and to import an optimizer's parts, a process group 20 ms. Tests of
`process_group.spawn` itself, and functions that leave a patch behind, use `spawn_processes`.

`pytest --ranks nccl tests/distributed tests/optimizer` runs the same functions on GPUs, one per rank, and skips tests
that need more ranks than there are GPUs. With `--ranks gloo_on_cuda` the ranks share the GPUs. With
`--ranks like_gloo_on_cuda` they have no GPU, and only the collectives that gloo has for CUDA tensors.
"""

import atexit
import io
import os
import tempfile
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, forkserver, get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

import tests.distributed.backends  # noqa: F401, registers them here and in the ranks
from cs336_systems.distributed import process_group

RANKS = os.environ.get("TESTS_RANKS", "gloo")  # set by conftest.py
BACKEND = "gloo" if RANKS == "gloo_on_cuda" else RANKS
ON_NCCL = RANKS == "nccl"
ON_GPUS = ON_NCCL or RANKS == "gloo_on_cuda"
IS_PLAIN = RANKS not in ("gloo", "nccl")  # the backend has torch's plain collectives alone
TIMEOUT_S = 60.0
counts_coalesced_calls = pytest.mark.skipif(IS_PLAIN, reason="the backend coalesces no calls")


def spawn(function: Callable[..., Any], world_size: int, *args: Any, backend: str = BACKEND) -> list[Any]:
    """Run `function(rank, *args)` on `world_size` ranks with a default process group; return results by rank.

    The first error ends all ranks and is raised here; the next call starts new ones. A function that leaves a patch or
    a setting behind must be run by `process_group.spawn`.
    """
    if ON_GPUS:
        return spawn_processes(function, world_size, *args, backend=backend)
    return _pool.run(world_size, function, args, backend)


def spawn_processes(function: Callable[..., Any], world_size: int, *args: Any, **kwargs: Any) -> list[Any]:
    """Run `process_group.spawn`, with processes that start from a server that has imported an optimizer's parts."""
    skip_unless_enough_gpus(world_size)
    preload()
    kwargs = {"backend": BACKEND, **kwargs}
    if ON_GPUS:
        return process_group.spawn(on_a_gpu, world_size, function, *args, **kwargs)
    return process_group.spawn(function, world_size, *args, **kwargs)


def skip_unless_enough_gpus(world_size: int) -> None:
    """Skip the test if NCCL, which takes one rank on each GPU, cannot have so many."""
    if ON_NCCL and world_size > torch.cuda.device_count():
        pytest.skip(f"needs {world_size} GPUs")


def preload() -> None:
    """Start the server of processes, which keeps its imports for the life of this process."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # otherwise the imports initialize CUDA, which forbids forks
    forkserver.set_forkserver_preload([process_group.__name__, "torch._dynamo", "pytest"])
    forkserver.ensure_running()


def on_a_gpu(rank: int, function: Callable[..., Any], *args: Any) -> Any:
    """Run with the rank's GPU as default device; return tensors on the CPU."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")
    return tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), function(rank, *args))


class _NoGroup(Exception):
    """Processes of earlier calls did not form a process group."""


class _Pool:
    """Processes of this host, of which a call takes the first `world_size`."""

    def __init__(self) -> None:
        self._processes: list[Any] = []
        self._channels: list[connection.Connection] = []

    def run(self, world_size: int, function: Callable[..., Any], args: tuple[Any, ...], backend: str) -> list[Any]:
        try:
            return self._run(world_size, function, args, backend)
        except _NoGroup:  # processes that have been idle for minutes of other tests; seen in two of three whole runs
            return self._run(world_size, function, args, backend)

    def _run(self, world_size: int, function: Callable[..., Any], args: tuple[Any, ...], backend: str) -> list[Any]:
        is_new = not self._processes
        self._grow(world_size)
        results: dict[int, Any] = {}
        try:
            with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
                for rank, channel in enumerate(self._channels[:world_size]):
                    channel.send((rank, world_size, str(Path(folder, "store")), backend, function, args))
                while len(results) < world_size:
                    pending = {self._channels[rank]: rank for rank in range(world_size) if rank not in results}
                    for ready in connection.wait(list(pending)):
                        rank = pending[ready]
                        reply = torch.load(io.BytesIO(ready.recv_bytes()), weights_only=False)
                        error, has_group, results[rank] = reply
                        if error and not is_new and (not has_group or "Connection closed by peer" in error):
                            raise _NoGroup  # or another rank's did not form: this rank lost it at its first collective
                        if error:
                            pytest.fail(f"rank {rank} of {world_size}:\n{error}", pytrace=False)
        except BaseException:
            self.close()
            raise
        return [results[rank] for rank in range(world_size)]

    def close(self) -> None:
        for process in self._processes:
            if process.is_alive():  # another process may have the number of a dead one
                process.kill()
            process.join()
        self._processes, self._channels = [], []

    def _grow(self, size: int) -> None:
        preload()
        context = get_context("forkserver")
        while len(self._processes) < size:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._channels.append(ours)


_pool = _Pool()
atexit.register(_pool.close)


def _serve(calls: connection.Connection) -> None:
    """Run calls until the parent ends it, as it does after an error."""
    threading.Thread(target=process_group._leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while True:
        rank, world_size, path, backend, function, args = calls.recv()
        error, has_group, result = "", False, None
        try:
            torch.manual_seed(0)  # as in a new process, the same on every rank
            store = dist.FileStore(path, world_size)
            store.set_timeout(timedelta(seconds=TIMEOUT_S))
            with process_group.process_group(rank, world_size, store, backend, TIMEOUT_S):
                has_group = True
                result = function(rank, *args)
        except BaseException:
            error = traceback.format_exc()
        answer = io.BytesIO()
        torch.save((error, has_group, result), answer)
        calls.send_bytes(answer.getvalue())
