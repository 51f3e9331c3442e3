"""A lock for each device: concurrent measurements would disturb each other."""

import contextlib
import ctypes
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from filelock import FileLock, Timeout

from perf.printable import printable
from perf.stored import read_object

PATIENCE_S = 5.0


FOLDER = Path(os.environ.get("PERF_LOCKS") or "/tmp")
"""Folder of the locks, which all users of the machine share: no TMPDIR changes it."""


class Busy(click.ClickException):
    """Another measurement has locked a device, and the message names both; or the lock cannot be taken."""


@contextmanager
def measuring(what: str, *, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Lock the GPUs that this process sees inside the block; the machine, if it sees none.

    Raises `Busy` with one line if another process has locked any. With `wait`, wait instead until all are free, and
    pass that line to `wait` every few seconds. A lock is a file in `FOLDER`. It is released when its process ends.
    """
    with contextlib.ExitStack() as locks:
        for gpu in sorted(visible_gpus()) or [""]:  # a fixed order prevents deadlocks
            locks.enter_context(_locked(gpu, what, wait))
        yield


@contextmanager
def _locked(gpu: str, what: str, wait: Callable[[str], None] | None) -> Iterator[None]:
    path = FOLDER / f"perf-measuring{'-' + gpu if gpu else ''}.lock"
    lock, note = FileLock(path, mode=0o666), path.with_suffix(".json")
    while not lock.is_locked:
        try:
            lock.acquire(timeout=PATIENCE_S if wait else 0)
        except Timeout:
            where = gpu or "this machine"
            busy = f"another measurement runs on {where}{_owner(note)}: two at once would disturb each other"
            if wait is None:
                raise Busy(busy) from None
            wait(busy)
        except OSError as error:
            raise _no_lock(path, error) from None
    try:
        # Another account's note cannot be overwritten.
        with contextlib.suppress(OSError), open(note, "w", opener=_refuse_links) as stream:
            json.dump({"pid": os.getpid(), "what": what}, stream)
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
        lock.release()


def lock_checkout(environments: Path) -> FileLock:
    """Lock what an asv run of a checkout changes, its environments and its results, until the lock is released.

    Raises `Busy` with one line if another process has locked it, or if it cannot be locked.
    """
    path = environments / "run.lock"
    lock = FileLock(path)
    try:
        environments.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise Busy(
            f"another asv measures in {environments.parent.resolve()}: wait until it has ended, or use a checkout of "
            "its own"
        ) from None
    except OSError as error:
        raise _no_lock(path, error) from None
    return lock


def _no_lock(path: Path, error: OSError) -> Busy:
    return Busy(f"cannot take the lock {path}: {error.strerror}")


def visible_gpus() -> list[str]:
    """Return the UUIDs, as in `nvidia-smi -L`, of the GPUs that CUDA gives to this process; without torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):  # an error
        return []
    uuids = []
    for index in range(count.value):
        identity = (ctypes.c_ubyte * 16)()
        if not driver.cuDeviceGetUuid(identity, index):
            uuids.append(f"GPU-{uuid.UUID(bytes=bytes(identity))}")
    return uuids


def _refuse_links(path: str, flags: int) -> int:
    """Open without following a link: any user could place one in the shared folder to redirect our write."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def _owner(note: Path) -> str:
    try:
        owner = read_object(note)
        return printable(f" (process {owner['pid']}: {owner['what']})")
    except (OSError, ValueError, KeyError):
        return ""
