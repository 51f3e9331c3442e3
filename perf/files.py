"""Files that somebody may read while they are written, and folders that nobody needs when their process has ended."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

ROOM_BYTES = 2**20
"""What `refuse_unwritable` asks for: a kept gate of a thousand rows is smaller."""


def replace_file(path: Path, content: bytes) -> None:
    """Write beside, then rename: nobody sees half a file, and a failure leaves nothing. Raises `OSError`.

    The file beside has one name and one writer at a time, so what a killed process left there is written over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as (aside, handle):
        _write(handle, content)
        aside.replace(path)


def write_aside(path: Path, content: str | bytes) -> None:
    """`replace_file`, text in UTF-8. Raises `click.ClickException` with one line if it fails."""
    with _one_line(path):
        replace_file(path, content.encode() if isinstance(content, str) else content)


def write_measured(files: Mapping[Path, str]) -> None:
    """`write_aside` of what took an hour to measure. Raises at the end, with one line that says where it is instead.

    That is a folder for temporary files, or else standard output.
    """
    lost = []
    for path, text in files.items():
        try:
            write_aside(path, text)
        except click.ClickException as error:
            lost.append(f"{error.message}; it is {_saved(path.name, text)} instead")
    if lost:
        raise click.ClickException("; ".join(lost))


def _saved(name: str, text: str) -> str:
    try:
        path = Path(tempfile.mkdtemp(prefix="perf-saved-")) / name
        replace_file(path, text.encode())
    except OSError:
        click.echo(text)
        return "on standard output"
    return f"in {path}"


def refuse_unwritable(path: Path) -> None:
    """Find out before an hour of measuring whether `write_aside` will be able to: by writing. Raises as it does."""
    with _one_line(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _beside(path) as (aside, handle):
            _write(handle, bytes(ROOM_BYTES))
            aside.unlink()


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[Path, int]]:
    """An empty file beside the path, locked: waits for another writer of the same path. Removed where writing fails."""
    aside = path.with_name(f"{path.name}.tmp")
    while True:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is(aside, handle):  # the writer before us has renamed it
                continue
            try:
                os.truncate(handle, 0)
                yield aside, handle
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
            return
        finally:
            os.close(handle)


def _is(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


def _write(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:  # a disk that is nearly full takes a part, and refuses the next
        left = left[os.write(handle, left) :]


@contextlib.contextmanager
def scratch_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """A folder for as long as the process needs it, under `within` or the system's folder for temporary files.

    Those of this prefix that killed processes have left behind go first: a living process holds a lock on its own.
    """
    for left in Path(within or tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as held:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
            with contextlib.suppress(OSError):  # another process took it for one that was left
                held.enter_context(_locked(folder))
                break
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises `OSError` while another process holds the folder, and where it is gone, another user's or none."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(handle).st_nlink or os.fstat(handle).st_uid != os.getuid():
            raise FileNotFoundError(folder)
        yield
    finally:
        os.close(handle)
