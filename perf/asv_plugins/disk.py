"""Atomic and early writes, and one-line errors for asv on a disk that is full, read-only or another user's.

asv itself writes once, after the last benchmark, so a killed run leaves nothing; it writes in place, which leaves an
empty result on a full disk, and ends with a traceback.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
from asv import util
from asv.commands.asv_profiling import Profile
from asv.commands.find import Find
from asv.commands.publish import Publish
from asv.commands.rm import Rm
from asv.commands.run import Run
from asv.commands.update import Update
from asv.console import log
from asv.results import Results
from asv.util import ProcessError, UserError
from filelock import FileLock, Timeout

from perf.asv_plugins.checked import Damaged
from perf.files import replace_file, scratch_folder, set_aside
from perf.gate import acceptance
from perf.options import ending_on_signals

MAX_TEMPDIR_BYTES = 107 - len("/perf-asv-12345678/asv-forkserver-12345678/socket")
"""Of the 107 of a socket's name, what asv's own and our folder's leave."""

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


def _write_json(path: str, data: Any, api_version: int | None = None, compact: bool = False) -> None:
    """Write the same text as `asv.util.write_json`, atomically."""
    if api_version is not None:
        data = dict(data) | {"version": api_version}
    text = json.dumps(data) if compact else json.dumps(data, indent=4, sort_keys=True)
    try:
        replace_file(Path(path), text.encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def _within(run: Any, *contexts: Callable[[Any], AbstractContextManager[None]]) -> Any:
    """Return asv's classmethod `run`, called inside `contexts` of its configuration, the first outermost."""

    @functools.wraps(run.__func__)
    def command(cls: Any, conf: Any, *arguments: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context(conf))
            return run.__func__(cls, conf, *arguments, **options)

    return classmethod(command)


@contextlib.contextmanager
def _one_line_errors(conf: Any) -> Iterator[None]:
    try:
        yield
    except shutil.Error as error:  # of many files, each with its source, target and reason
        _, target, reason = error.args[0][0]
        raise UserError(f"{target} cannot be written: {reason}") from None
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise UserError(f"{error.filename or Path.cwd()} cannot be written: {error.strerror}") from None
    except KeyboardInterrupt:
        log.error("interrupted; what has finished is kept")
        raise SystemExit(130) from None
    except ProcessError as error:
        lines = [line for line in (error.stderr or error.stdout or "").splitlines() if line.strip()]
        program, *arguments = error.args
        command = " ".join([Path(program).name, *arguments])[:200]
        raise UserError(f"{command} failed: {lines[-1] if lines else error.retcode}") from None


@contextlib.contextmanager
def _publish_lock(conf: Any) -> Iterator[None]:
    """Wait for another publish to the same folder: asv empties the folder first, and so would delete its files."""
    folder = Path(conf.html_dir).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info(f"another asv publishes in {folder}: waiting until it has ended")
        lock.acquire()
    with lock:
        yield


@contextlib.contextmanager
def _something_to_publish(conf: Any) -> Iterator[None]:
    """Refuse what asv would only find after it has emptied the site."""
    if Path(conf.html_dir).is_symlink():
        raise UserError(f"html_dir {conf.html_dir} is a link; allowed: a folder, which asv empties")
    if not (known := Path(conf.results_dir, "benchmarks.json")).is_file():
        raise UserError(f"{known} is missing; `asv run` writes it")
    try:
        acceptance.in_checkout()
    except click.ClickException as error:
        raise UserError(error.message) from None
    yield


@contextlib.contextmanager
def _scratch_tempdir(conf: Any) -> Iterator[None]:
    """Put asv's temporary files into one folder, which the next run removes if this one is killed.

    Only asv's own process changes its folder. A long path would leave no room for the name of asv's socket.
    """
    before = tempfile.tempdir
    within = None if len(os.fsencode(tempfile.gettempdir())) <= MAX_TEMPDIR_BYTES else Path("/tmp")
    with scratch_folder("perf-asv-", within) as folder:
        tempfile.tempdir = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = before


def _setting_damaged_aside(load: Any) -> Any:
    @functools.wraps(load)
    def checked(self: Any, result_dir: str) -> None:
        path = Path(result_dir, self._filename)
        try:
            load(self, result_dir)
        except Damaged as error:
            log.warning(f"{error}: it is {set_aside(path).name} now, and this run writes a new one")

    return checked


def _noting_the_folder(load: Any) -> Any:
    @functools.wraps(load)
    def noted(self: Any, result_dir: str) -> None:
        load(self, result_dir)
        self.saved_in = result_dir

    return noted


def _saving(add: Any) -> Any:
    """Save after every benchmark where the run will save: it has loaded what is there, which no other run does."""

    @functools.wraps(add)
    def added(self: Any, *arguments: Any, **options: Any) -> None:
        add(self, *arguments, **options)
        if result_dir := getattr(self, "saved_in", None):
            self.save(result_dir)

    return added


def install() -> None:
    """Wrap asv's writers and commands, once a process."""
    if not hasattr(Publish.run, "__wrapped__"):  # checked wraps Run.run too
        util.write_json = _write_json
        Results.load_data = _noting_the_folder(_setting_damaged_aside(Results.load_data))
        Results.add_result = _saving(Results.add_result)
        for measuring in (Run, Find, Profile):
            measuring.run = _within(measuring.run, _one_line_errors, lambda _: ending_on_signals(), _scratch_tempdir)
        for writing in (Rm, Update):
            writing.run = _within(writing.run, _one_line_errors)
        Publish.run = _within(Publish.run, _one_line_errors, _something_to_publish, _publish_lock)
