"""Validation of every file that asv reads: an invalid result is left out with a warning that names it.

asv has no hook between a file and its tables, so this module wraps the functions that read files.
"""

import functools
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asv import util
from asv.benchmarks import Benchmarks
from asv.commands import publish
from asv.commands.check import Check
from asv.commands.run import Run
from asv.console import log
from asv.results import Results
from asv.util import UserError

from perf.selection import asv_classes
from perf.stored import problem_of_benchmark, problem_of_results, read_object

_cannot_run, _left_out = list[str](), list[str]()
"""Reasons, of the last discovery: of classes that asv will say have failed, and of rows that it will not mention."""


class Damaged(UserError):
    """An invalid result file; the message names it."""


def _version(path: str) -> tuple[str, int, int] | None:
    """Identify a file's contents by its time and size; None if it cannot be read."""
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return path, stat.st_mtime_ns, stat.st_size


def _checking_results(load: Any) -> Any:
    sound = set[tuple[str, int, int] | None]()  # A publish loads each file four times.

    @functools.wraps(load.__func__)
    def checked(cls: Any, path: str, machine_name: str | None = None) -> Any:
        if (version := _version(path)) and version in sound:
            return load.__func__(cls, path, machine_name)
        try:
            document = read_object(Path(path))
        except OSError:
            document = {}  # asv reports a file that cannot be read, and other versions
        except ValueError as error:
            raise Damaged(f"Error parsing JSON: {error} in file '{path}'") from None
        if document.get("version") == cls.api_version and (problem := problem_of_results(document)):
            raise Damaged(f"{path} is left out: {problem}")
        found = load.__func__(cls, path, machine_name)
        sound.add(version)
        return found

    return classmethod(checked)


def _checking_benchmarks(load: Any) -> Any:
    @functools.wraps(load.__func__)
    def checked(cls: Any, conf: Any, regex: Any = None) -> Any:
        path = Path(cls.get_benchmark_file_path(conf.results_dir))
        try:
            document = read_object(path)
        except OSError:
            document = {}  # asv reports a file that cannot be read, and other versions
        except ValueError as error:
            raise UserError(f"{path} cannot be read: {error}; git checkout restores it") from None
        if document.pop("version", None) != cls.api_version:
            return load.__func__(cls, conf, regex)
        kept = []
        for name, entry in document.items():
            if problem := problem_of_benchmark(name, entry):
                log.warning(f"{path}: {name[:100]!a} is left out: {problem}")
            else:
                kept.append(entry | {"code": html.escape(entry.get("code", ""))})  # asv shows it as HTML
        return cls(conf, kept, regex=regex)

    return classmethod(checked)


def _checking_json(load: Any) -> Any:
    @functools.wraps(load)
    def checked(path: str, *arguments: Any, **options: Any) -> Any:
        try:
            document = load(path, *arguments, **options)
        except (UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"Error parsing JSON in file '{path}': {error}") from None
        except TypeError:  # asv compares the version with its own
            raise UserError(f"{path} is not of asv's form: its version is no number") from None
        if Path(path).name == "machine.json" and not isinstance(document, dict):
            raise UserError(f"{path} is not a JSON object")
        return document

    return checked


def _skipping_machines(iterate: Any) -> Any:
    @functools.wraps(iterate)
    def readable(results: str) -> Iterator[str]:
        for path in iterate(results):
            try:
                has_name = isinstance(util.load_json(path).get("machine"), str)
            except UserError as error:
                log.warning(f"{error}: its machine is left out")
                continue
            if has_name:  # otherwise asv itself warns of the results in this folder
                yield path

    return readable


def _naming_unsound_classes(discover: Any) -> Any:
    """Return `Benchmarks.discover`, which says first why a class cannot run: asv says only that its setup failed.

    A class whose axes asv's files cannot hold is left out: its row would make the commit's file unreadable.
    """

    @functools.wraps(discover.__func__)
    def named(cls: Any, *arguments: Any, **options: Any) -> Any:
        _cannot_run[:] = [reason for _, sound, reason in asv_classes() if sound is None]
        for reason in _cannot_run:
            log.error(reason)
        try:
            found = discover.__func__(cls, *arguments, **options)
        except re.error as error:
            raise UserError(f"{error.pattern!r} was given; allowed: a regular expression ({error})") from None
        for name, entry in list(found.items()):
            if problem := problem_of_benchmark(name, entry):
                _left_out.append(f"{name} is left out: {problem}")
                log.error(_left_out[-1])
                del found[name]
        return found

    return classmethod(named)


def _failing(run: Any, status: int, *reasons: list[str]) -> Any:
    """Return a command's `run`, which ends with `status` instead of 0 where its discovery gave one of the reasons."""

    @functools.wraps(run.__func__)
    def failing(cls: Any, *arguments: Any, **options: Any) -> Any:
        _cannot_run.clear()
        _left_out.clear()
        return run.__func__(cls, *arguments, **options) or (status if any(reasons) else 0)

    return classmethod(failing)


def install() -> None:
    """Wrap asv's readers, once a process."""
    if not hasattr(Results.load, "__wrapped__"):
        util.load_json = _checking_json(util.load_json)
        publish.iter_machine_files = _skipping_machines(publish.iter_machine_files)
        Results.load = _checking_results(Results.load)
        Benchmarks.load = _checking_benchmarks(Benchmarks.load)
        Benchmarks.discover = _naming_unsound_classes(Benchmarks.discover)
        Check.run = _failing(Check.run, 1, _cannot_run, _left_out)
        Run.run = _failing(Run.run, 2, _left_out)
