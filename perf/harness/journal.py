"""The file of a commit's records: lines of JSON, appended while a run goes on.

Every finished visit is appended to `<commit>.jsonl.part` at once, so that a killed run loses nothing. At the end of a
run this journal is folded into `<commit>.jsonl.gz`, atomically. `records` tells what the lines hold.
"""

import errno
import fcntl
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from perf.files import replace_file


class Unreadable(SystemExit):
    """A damaged file, which ends what needs the whole of it with one line."""

    def __init__(self, path: Path, reason: Exception):
        super().__init__(f"perf: {path} cannot be read: {reason}; move it aside or restore it")
        self.reason = reason


class Journal:
    """The open records of one commit, to which one run at a time appends lines.

    Raises `SystemExit` with one line if it cannot write, if another run is writing, or if what it adds to is damaged.
    """

    def __init__(self, directory: Path, machine: str, commit: str):
        self._target = directory / machine / f"{commit}.jsonl.gz"
        self._part = self._target.with_name(f"{commit}.jsonl.part")
        read_lines(directory, machine, commit, ("session",))  # raises before the measurement, instead of `close`
        with self._one_line():
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._open()
            if os.fstat(self._stream.fileno()).st_size:  # left by a killed run
                self._fold()
                self._stream.truncate(0)

    def _open(self) -> FileIO:
        """Open and lock the journal: the lock ends with its process, so an unlocked journal is of a killed run."""
        while True:
            stream = self._part.open("ab", buffering=0)
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.close()
                raise SystemExit(f"perf: another run writes {self._part}; wait until it has ended") from None
            if os.fstat(stream.fileno()).st_nlink:
                return stream
            stream.close()  # the run that had locked it has just removed it

    def write(self, line: dict[str, Any]) -> None:
        """Append one line and sync it to the disk."""
        text = _encode(line)
        with self._one_line():
            written = self._stream.write(text)  # unbuffered: closing the file cannot fail again
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Fold the journal into the compressed file."""
        with self._one_line(), self._stream:
            self._fold()
            self._part.unlink()

    def _fold(self) -> None:
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as stream:  # mtime=0: the same lines make the same bytes
            for line in _joined(self._target, self._part):
                stream.write(_encode(line))
        replace_file(self._target, packed.getvalue())

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kept = f"; what was measured until then is in {self._part.name}" if self._part.exists() else ""
            raise SystemExit(f"perf: cannot write records to {self._part.parent}: {error.strerror}{kept}") from None


def _encode(line: dict[str, Any]) -> bytes:
    return (json.dumps(line, separators=(",", ":")) + "\n").encode()


def read_lines(directory: Path, machine: str, commit: str, kinds: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Read a commit's lines of these kinds, by default of all, in order, those of an unfinished journal included.

    Raises `Unreadable`.
    """
    folder = directory / machine
    return _joined(folder / f"{commit}.jsonl.gz", folder / f"{commit}.jsonl.part", kinds)


def _joined(target: Path, part: Path, kinds: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the lines of both files, those of the journal once: a run that is killed after it was folded leaves it."""
    # The journal first: a run that ends in between moves its lines to the other file.
    journal, folded = (list(_read_lines(path, kinds)) for path in (part, target))
    if not journal:
        return folded
    begins = [number for number, line in enumerate(folded) if line == journal[0]]
    is_folded = any(folded[number : number + len(journal)] == journal for number in begins)
    return folded if is_folded else [*folded, *journal]


def _read_lines(path: Path, kinds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    # A line's first characters give its kind, so a million visits need not be parsed to find a session.
    starts = tuple(f'{{"kind":"{kind}"' for kind in kinds) or "{"
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as stream:
            for text in stream:
                # A last line without its end was cut off by the end of a killed run.
                if text.startswith(starts) and text.endswith("\n"):
                    yield json.loads(text)
    except FileNotFoundError:
        return
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise Unreadable(path, error) from None
