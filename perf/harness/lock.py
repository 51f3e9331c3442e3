"""One measurement at a time on one device: two at once would measure each other."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

PATIENCE_S = 5.0


class Busy(Exception):
    """Another measurement holds the machine; the message says which."""


@contextmanager
def measuring(what: str, *, wait: Callable[[str], None] | None = None, folder: Path | None = None) -> Iterator[None]:
    """Hold this machine's lock meanwhile. Raises `Busy` with one line if another process holds it.

    With `wait`, that is told every few seconds instead, until the lock is free. The lock is a file in `folder`, by
    default the one for temporary files: one for all users of the machine. It dies with its process.
    """
    path = (folder or Path(tempfile.gettempdir())) / "perf-measuring.lock"
    lock, note = FileLock(path, mode=0o666), path.with_suffix(".json")
    while not lock.is_locked:
        try:
            lock.acquire(timeout=PATIENCE_S if wait else 0)
        except Timeout:
            busy = f"another measurement runs on this machine{_who(note)}: two at once would measure each other"
            if wait is None:
                raise Busy(busy) from None
            wait(busy)
        except PermissionError as error:
            raise Busy(f"cannot take the lock {path}: {error.strerror}") from None
    try:
        with contextlib.suppress(OSError):  # a note that another account has left
            note.write_text(json.dumps({"pid": os.getpid(), "what": what}))
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
        lock.release()


def _who(note: Path) -> str:
    try:
        said = json.loads(note.read_text())
        return f" (process {said['pid']}: {said['what']})"
    except (OSError, ValueError, KeyError):
        return ""
