"""Atomic writes of files, and scratch folders that are removed even after their process was killed."""

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

PROBE_BYTES = 2**20
"""Size of the probe that `refuse_unwritable` writes: a kept gate report of a thousand rows is smaller."""


def replace_file(path: Path, content: bytes) -> None:
    """Write to a temporary file beside `path`, then rename it: readers never see half a file. Raises `OSError`.

    A process that is killed meanwhile leaves that file behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_beside(path) as temporary:
        temporary.write_bytes(content)
        temporary.replace(path)


def set_aside(path: Path) -> Path:
    """Rename an invalid file to *.broken, or *.broken.1 and so on where those exist; return its new path."""
    broken = path.with_name(f"{path.name}.broken")
    for number in itertools.count(1):
        if not broken.exists():
            break
        broken = path.with_name(f"{path.name}.broken.{number}")
    path.replace(broken)
    return broken


def write_aside(path: Path, content: str | bytes) -> None:
    """Call `replace_file`, with text in UTF-8. Raises `click.ClickException` with one line if it fails."""
    with _click_errors(path):
        replace_file(path, content.encode() if isinstance(content, str) else content)


def write_measured(files: Mapping[Path, str]) -> None:
    """Write measurements that took an hour: those that cannot be written go to a temporary folder or to stdout.

    Raises `click.ClickException` at the end with one line that names those places.
    """
    failures = []
    for path, text in files.items():
        try:
            write_aside(path, text)
        except click.ClickException as error:
            failures.append(f"{error.message}; it is {_save_elsewhere(path.name, text)} instead")
    if failures:
        raise click.ClickException("; ".join(failures))


def _save_elsewhere(name: str, text: str) -> str:
    try:
        path = Path(tempfile.mkdtemp(prefix="perf-saved-")) / name
        replace_file(path, text.encode())
    except OSError:
        click.echo(text)
        return "on standard output"
    return f"in {path}"


def refuse_unwritable(path: Path) -> None:
    """Write and remove a probe, so that a failure shows before an hour of measuring. Raises as `write_aside` does.

    A rename would put a file in the place of a device or a link, so these are refused.
    """
    with _click_errors(path):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise click.ClickException(f"{path} was given; allowed: a new file, or a regular one, which is replaced")
        new = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_beside(path) as temporary:
            temporary.write_bytes(bytes(PROBE_BYTES))
    with contextlib.suppress(OSError):  # another process has put something there
        for folder in new:
            folder.rmdir()


@contextlib.contextmanager
def _click_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """Yield the path of a new file beside `path`; remove what is there at the end."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder, under `within` or the system's temporary folder, and remove it at the end.

    First remove the folders of this prefix that killed processes left behind: a living process locks its own.
    """
    for abandoned in Path(within or tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(abandoned):
            shutil.rmtree(abandoned, ignore_errors=True)
    with contextlib.ExitStack() as lock:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
            with contextlib.suppress(OSError):  # another process has just removed it as abandoned
                lock.enter_context(_locked(folder))
                break
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder. Raises `OSError` if another process has locked it, or if it is gone, no folder or not ours."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(handle).st_nlink or os.fstat(handle).st_uid != os.getuid():
            raise FileNotFoundError(folder)
        yield
    finally:
        os.close(handle)
