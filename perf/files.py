"""Files that somebody may read while they are written, and folders that nobody needs when their process has ended."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click


def write_aside(path: Path, content: str | bytes) -> None:
    """Write beside, then rename: nobody sees half a file. Raises `click.ClickException` with one line if it fails."""
    aside = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(content.encode() if isinstance(content, str) else content)
        aside.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def refuse_unwritable(path: Path) -> None:
    """Find out before an hour of measuring whether `write_aside` will be able to. Raises as it does."""
    aside = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.touch()
        aside.unlink()
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A folder for as long as the process needs it, under the system's for temporary files.

    Those of this prefix that killed processes have left behind go first: a living process holds a lock on its own.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as held:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix))
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
