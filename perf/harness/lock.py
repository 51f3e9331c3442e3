"""One measurement at a time on one device: two at once would measure each other."""

import contextlib
import ctypes
import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from perf.printable import printable

PATIENCE_S = 5.0


class Busy(Exception):
    """Another measurement holds a device; the message says which."""


@contextmanager
def measuring(
    what: str,
    *,
    wait: Callable[[str], None] | None = None,
    folder: Path | None = None,
    gpus: Sequence[str] | None = None,
) -> Iterator[None]:
    """Hold every GPU that this process may use meanwhile, by default those that it sees; the machine, if it sees none.

    Raises `Busy` with one line if another process holds one. With `wait`, that is told every few seconds instead,
    until all are free. A lock is a file in `folder`, by default the one for temporary files, which is one for all users
    of the machine. It dies with its process.
    """
    with contextlib.ExitStack() as held:
        for gpu in sorted(visible_gpus() if gpus is None else gpus) or [""]:  # in one order: nobody waits in a circle
            held.enter_context(_holding(gpu, what, wait, folder or Path(tempfile.gettempdir())))
        yield


@contextmanager
def _holding(gpu: str, what: str, wait: Callable[[str], None] | None, folder: Path) -> Iterator[None]:
    path = folder / f"perf-measuring{'-' + gpu if gpu else ''}.lock"
    lock, note = FileLock(path, mode=0o666), path.with_suffix(".json")
    while not lock.is_locked:
        try:
            lock.acquire(timeout=PATIENCE_S if wait else 0)
        except Timeout:
            where = gpu or "this machine"
            busy = f"another measurement runs on {where}{_who(note)}: two at once would measure each other"
            if wait is None:
                raise Busy(busy) from None
            wait(busy)
        except PermissionError as error:
            raise Busy(f"cannot take the lock {path}: {error.strerror}") from None
    try:
        # A note that another account has left stays.
        with contextlib.suppress(OSError), open(note, "w", opener=_not_a_link) as stream:
            json.dump({"pid": os.getpid(), "what": what}, stream)
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
        lock.release()


def visible_gpus() -> list[str]:
    """UUIDs, as `nvidia-smi -L` has them, of the GPUs that CUDA gives to this process. Asks the driver: no torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):  # an error
        return []
    found = []
    for index in range(count.value):
        identity = (ctypes.c_ubyte * 16)()
        if not driver.cuDeviceGetUuid(identity, index):
            found.append(f"GPU-{uuid.UUID(bytes=bytes(identity))}")
    return found


def _not_a_link(path: str, flags: int) -> int:
    """The folder is everybody's: a link there would have us write where somebody else wants."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def _who(note: Path) -> str:
    try:
        said = json.loads(note.read_text())
        return printable(f" (process {said['pid']}: {said['what']})")
    except (OSError, ValueError, KeyError):
        return ""
