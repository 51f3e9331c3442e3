"""asv on a disk that is full, read-only or not ours: one line, no traceback, and no half of a file.

asv writes in place, and so leaves an empty result where the disk ends; and it has no word for what goes wrong there.
"""

import errno
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from asv import util
from asv.commands.publish import Publish
from asv.commands.run import Run
from asv.console import log
from asv.results import Results
from asv.util import ProcessError, UserError
from filelock import FileLock, Timeout

from perf.asv_plugins.checked import Damaged
from perf.files import replace_file, scratch_folder

REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


def _write_json(path: str, data: Any, api_version: int | None = None, compact: bool = False) -> None:
    """As asv's own writes, but beside and then renamed."""
    if api_version is not None:
        data = dict(data) | {"version": api_version}
    text = json.dumps(data) if compact else json.dumps(data, indent=4, sort_keys=True)
    try:
        replace_file(Path(path), text.encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def _in_one_line(run: Any) -> Any:
    @functools.wraps(run.__func__)
    def command(cls: Any, conf: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return run.__func__(cls, conf, *arguments, **options)
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            raise UserError(f"{error.filename or Path.cwd()} cannot be written: {error.strerror}") from None
        except ProcessError as error:
            words = [line for line in (error.stderr or error.stdout or "").splitlines() if line.strip()]
            program, *rest = error.args
            what = " ".join([Path(program).name, *rest])[:200]
            raise UserError(f"{what} failed: {words[-1] if words else error.retcode}") from None

    return classmethod(command)


def _one_at_a_time(run: Any) -> Any:
    """asv empties the folder of the site first: a second publish would take the first one's files away."""

    @functools.wraps(run.__func__)
    def publish(cls: Any, conf: Any, *arguments: Any, **options: Any) -> Any:
        folder = Path(conf.html_dir).absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f"{folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info(f"another asv publishes in {folder}: waiting until it has ended")
            lock.acquire()
        with lock:
            return run.__func__(cls, conf, *arguments, **options)

    return classmethod(publish)


def _load_data(load: Any) -> Any:
    @functools.wraps(load)
    def checked(self: Any, result_dir: str) -> None:
        path = Path(result_dir, self._filename)
        try:
            load(self, result_dir)
        except Damaged as error:
            path.replace(broken := path.with_name(f"{path.name}.broken"))
            log.warning(f"{error}: it is {broken.name} now, and this run writes a new one")

    return checked


def _in_scratch_folder(run: Any) -> Any:
    """What asv writes for the time being lies in one folder, which the next run removes if this one is killed.

    Of asv's own process alone: those that measure find everybody's lock where everybody looks.
    """

    @functools.wraps(run.__func__)
    def command(cls: Any, conf: Any, *arguments: Any, **options: Any) -> Any:
        before = tempfile.tempdir
        with scratch_folder("perf-asv-") as folder:
            tempfile.tempdir = str(folder)
            try:
                return run.__func__(cls, conf, *arguments, **options)
            finally:
                tempfile.tempdir = before

    return classmethod(command)


def install() -> None:
    """Wrap asv's functions, once."""
    if not hasattr(Run.run, "__wrapped__"):
        util.write_json = _write_json
        Results.load_data = _load_data(Results.load_data)
        Run.run = _in_one_line(_in_scratch_folder(Run.run))
        Publish.run = _in_one_line(_one_at_a_time(Publish.run))
