"""Spawned ranks: results, errors, and no process left behind after a rank raises, dies or hangs."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import connection, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessContext, ProcessExitedException, ProcessRaisedException

from cs336_systems.distributed import process_group
from cs336_systems.distributed.ddp import OverlappedDDP
from tests.distributed.models import Toy
from tests.distributed.ranks import BACKEND, ON_NCCL, skip_unless_enough_gpus
from tests.distributed.ranks import spawn_processes as spawn
from tests.distributed.steps import backward, batch, error_of, seeded


def default_store():
    return dist.distributed_c10d._get_default_store()


def describe(rank, *args):
    who = rank, dist.get_rank(), dist.get_world_size(), dist.get_backend()
    return *who, torch.get_num_threads(), args, torch.full((2,), rank)


@pytest.mark.parametrize("world_size", [1, 3])
def test_results_come_in_order_of_rank(world_size):
    results = spawn(describe, world_size, "a", {"b": 1})
    for rank, result in enumerate(results):
        assert result[:-1] == (rank, rank, world_size, BACKEND, 1, ("a", {"b": 1}))
        assert result[-1].tolist() == [rank, rank]


def leave(rank, how):
    if rank == 1:
        how(0)


@pytest.mark.parametrize("how", [sys.exit, os._exit])
def test_a_rank_that_exits_before_its_function_returns_is_an_error(how):
    with pytest.raises(RuntimeError, match=r"^rank 1 exited without a result; allowed: "):
        spawn(leave, 2, how)


def test_nccl_has_a_gpu_for_each_rank():
    world_size = torch.cuda.device_count() + 1
    with pytest.raises(ValueError, match=f"^world_size={world_size} was given; allowed with nccl: a GPU for each"):
        process_group.spawn(describe, world_size, backend="nccl")


@pytest.mark.parametrize("world_size", [0, -1, 2.0])
def test_no_ranks_are_not_a_success(world_size):
    """As of a machine without GPUs, whose number is 0."""
    with pytest.raises(ValueError, match=f"world_size={world_size} was given; allowed: an int of at least 1"):
        process_group.spawn(who_i_am, world_size)


def who_i_am(rank):
    return rank, dist.get_world_size()


def test_concurrent_spawns_do_not_meet_and_ranks_that_end_at_once_wait_for_the_others():
    with ThreadPoolExecutor(3) as threads:
        spawns = [threads.submit(spawn, who_i_am, 3) for _ in range(6)]
        assert [spawned.result() for spawned in spawns] == [[(0, 3), (1, 3), (2, 3)]] * 6


def test_another_thread_that_asks_for_the_processes_of_this_one_takes_no_exit_code():
    is_over = threading.Event()

    def ask():
        while not is_over.is_set():
            multiprocessing.active_children()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert [spawn(who_i_am, 3) for _ in range(4)] == [[(0, 3), (1, 3), (2, 3)]] * 4
    finally:
        is_over.set()
        asking.join()


def raise_on(rank, guilty, pending):
    if rank == guilty:
        if pending:
            dist.all_reduce(torch.ones(1), async_op=True)
        os.kill(parent_process().pid, signal.SIGUSR1)
        raise ValueError(f"rank {guilty} is the cause")
    if pending:
        default_store().wait(["never"])
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(
    ("guilty", "pending"), [(0, True), (2, False)], ids=["its collective is pending", "others wait for it"]
)
def test_the_first_error_is_raised_with_its_traceback(guilty, pending):
    """The handler delays this process until the other ranks have failed too, from the lost connection."""
    before = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1.0))
    try:
        with pytest.raises(ProcessRaisedException, match=f"rank {guilty} is the cause") as raised:
            spawn(raise_on, 3, guilty, pending, timeout_s=1000.0)  # pytest gives up sooner
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "in raise_on" in str(raised.value)


def announce(folder, rank):
    """Write this process's id for the test, and wait until all ranks have."""
    (folder / str(rank)).write_text(str(os.getpid()))
    dist.barrier()


def alive(folder):
    pids = [int(path.read_text()) for path in folder.iterdir()]
    assert len(pids) == 3
    return [pid for pid in pids if runs(pid)]


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def die_in_a_backward(rank, folder):
    net = OverlappedDDP(seeded(Toy))
    announce(folder, rank)
    if rank == 1:
        net.module.fc2.weight.register_post_accumulate_grad_hook(lambda _: os._exit(7))
    backward(net, *batch(0))
    net.finish_gradient_synchronization()


def test_a_rank_that_dies_ends_the_others_and_the_next_spawn_works(tmp_path):
    with pytest.raises(
        (ProcessExitedException, ProcessRaisedException)
    ):  # its death, or the error that this causes on another rank
        spawn(die_in_a_backward, 3, tmp_path)
    assert alive(tmp_path) == []
    assert [result[0] for result in spawn(describe, 3)] == [0, 1, 2]


class Interrupted(Exception):
    """Exception that the test's signal raises, as Ctrl-C does."""


def signal_the_parent_and_block(rank, folder, number):
    announce(folder, rank)
    if rank == 0:
        os.kill(parent_process().pid, number)
        default_store().wait(["never"])
    dist.all_reduce(torch.ones(1))


def test_an_interrupted_spawn_leaves_no_rank_behind(tmp_path):
    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            spawn(signal_the_parent_and_block, 3, tmp_path, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert alive(tmp_path) == []


def die_or_block(rank):
    if rank == 0:
        os._exit(3)
    default_store().wait(["never"])


def test_a_rank_that_has_ended_is_not_killed_by_its_number(monkeypatch):
    """The server of processes reaps them, so that another process may have the number by then."""
    killed = []

    def interrupted(ranks, *arguments):
        connection.wait([ranks.processes[0].sentinel])
        raise KeyboardInterrupt

    def kill(process):
        killed.append(process.pid)
        os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(ProcessContext, "join", interrupted)
    monkeypatch.setattr(BaseProcess, "kill", kill)
    with pytest.raises(KeyboardInterrupt):
        spawn(die_or_block, 2)
    assert len(killed) == 1


def test_a_killed_parent_leaves_no_rank_behind(tmp_path):
    skip_unless_enough_gpus(3)  # the script would fail instead
    script = f"""
from pathlib import Path
from tests.distributed.ranks import spawn_processes
from tests.distributed.test_spawn import signal_the_parent_and_block
spawn_processes(signal_the_parent_and_block, 3, Path({str(tmp_path)!r}), {signal.SIGKILL:d}, timeout_s=1000.0)
"""
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", script], cwd=root).returncode == -signal.SIGKILL
    while alive(tmp_path):  # until pytest gives up
        time.sleep(0.05)


TIMEOUT_S = 5.0  # long enough for a loaded machine to start two ranks


def leave_the_second_all_reduce_out(rank):
    """Return each rank's error. Rank 1 has only the gradient of the last layer, and waits for a key."""
    net = OverlappedDDP(seeded(Toy))
    inputs, labels = batch(0)
    if rank == 1:
        net.module.fc2.register_forward_hook(lambda _module, _inputs, out: out.detach())
        backward(net, inputs, labels)
        error = error_of(default_store().wait, ["never"])
        default_store().wait(["rank 0 gave up"], timedelta(seconds=1000))
        return error
    backward(net, inputs, labels)
    error = error_of(net.finish_gradient_synchronization)
    default_store().set("rank 0 gave up", "")
    return error


@pytest.mark.skipif(ON_NCCL, reason="NCCL's watchdog ends the rank: tests/harness/test_ranks.py")
def test_a_rank_that_enters_no_collective_is_noticed_within_the_timeout_with_the_name_of_what_waited():
    """Without the timeout both ranks would wait until pytest gives up."""
    error, store_error = spawn(leave_the_second_all_reduce_out, 2, timeout_s=TIMEOUT_S)
    assert error.startswith("RuntimeError: rank 0: all-reduce 2 of 3 (2000 bytes: fc2.weight) failed: ")
    assert "Error: " in store_error
