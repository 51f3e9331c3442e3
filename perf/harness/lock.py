"""One measurement at a time on one device: two at once would measure each other."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


class Busy(Exception):
    """Another measurement holds the machine; the message says which."""


@contextmanager
def measuring(what: str, folder: Path | None = None) -> Iterator[None]:
    """Hold this machine's lock meanwhile. Raises `Busy` with one line if another process holds it.

    The lock is a file in `folder`, by default the one for temporary files: one for all users of the machine. It dies
    with its process.
    """
    path = (folder or Path(tempfile.gettempdir())) / "perf-measuring.lock"
    lock = FileLock(path, mode=0o666)
    note = path.with_suffix(".json")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Busy(
            f"another measurement runs on this machine{_who(note)}: two at once would measure each other"
        ) from None
    except PermissionError as error:
        raise Busy(f"cannot take the lock {path}: {error.strerror}") from None
    try:
        note.write_text(json.dumps({"pid": os.getpid(), "what": what}))
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def _who(note: Path) -> str:
    try:
        said = json.loads(note.read_text())
        return f" (process {said['pid']}: {said['what']})"
    except (OSError, ValueError, KeyError):
        return ""
