"""asv reads no result that is none: what fails the check is left out with a warning that names it, the rest is taken.

asv has no hook between a file and its tables, so what reads files is wrapped.
"""

import functools
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asv import util
from asv.benchmarks import Benchmarks
from asv.commands import publish
from asv.console import log
from asv.results import Results
from asv.util import UserError

from perf.stored import problem_of_benchmark, problem_of_results


class Damaged(UserError):
    """A result that asv cannot take; the message names the file."""


def _version(path: str) -> tuple[str, int, int] | None:
    """Identify a file's contents by its time and size; None if it cannot be read."""
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return path, stat.st_mtime_ns, stat.st_size


def _load_results(load: Any) -> Any:
    sound = set[tuple[str, int, int] | None]()  # A publish loads each file four times.

    @functools.wraps(load.__func__)
    def checked(cls: Any, path: str, machine_name: str | None = None) -> Any:
        if (version := _version(path)) and version in sound:
            return load.__func__(cls, path, machine_name)
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError:
            document = None  # asv has its own words
        except (ValueError, RecursionError) as error:
            raise Damaged(f"Error parsing JSON: {error} in file '{path}'") from None
        if isinstance(document, dict) and document.get("version") == cls.api_version:  # of other versions asv speaks
            if wrong := problem_of_results(document):
                raise Damaged(f"{path} is left out: {wrong}")
        elif document is not None and not isinstance(document, dict):
            raise Damaged(f"{path} is left out: {problem_of_results(document)}")
        found = load.__func__(cls, path, machine_name)
        sound.add(version)
        return found

    return classmethod(checked)


def _load_benchmarks(load: Any) -> Any:
    @functools.wraps(load.__func__)
    def checked(cls: Any, conf: Any, regex: Any = None) -> Any:
        path = Path(cls.get_benchmark_file_path(conf.results_dir))
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            return load.__func__(cls, conf, regex)  # asv has its own words
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {error}; git checkout restores it") from None
        if not isinstance(document, dict) or document.pop("version", None) != cls.api_version:
            return load.__func__(cls, conf, regex)
        kept = []
        for name, entry in document.items():
            if wrong := problem_of_benchmark(name, entry):
                log.warning(f"{path}: {name[:100]!a} is left out: {wrong}")
            else:
                kept.append(entry | {"code": html.escape(entry.get("code", ""))})  # asv shows it as HTML
        return cls(conf, kept, regex=regex)

    return classmethod(checked)


def _load_json(load: Any) -> Any:
    @functools.wraps(load)
    def checked(path: str, *arguments: Any, **options: Any) -> Any:
        try:
            found = load(path, *arguments, **options)
        except (UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"Error parsing JSON in file '{path}': {error}") from None
        if Path(path).name == "machine.json" and not isinstance(found, dict):
            raise UserError(f"{path} holds no object")
        return found

    return checked


def _machine_files(iterate: Any) -> Any:
    @functools.wraps(iterate)
    def readable(results: str) -> Iterator[str]:
        for path in iterate(results):
            try:
                named = isinstance(util.load_json(path).get("machine"), str)
            except UserError as error:
                log.warning(f"{error}: its machine is left out")
                continue
            if named:  # else asv says so with the results beside it
                yield path

    return readable


def install() -> None:
    """Wrap asv's functions, once."""
    if not hasattr(Results.load, "__wrapped__"):
        util.load_json = _load_json(util.load_json)
        publish.iter_machine_files = _machine_files(publish.iter_machine_files)
        Results.load = _load_results(Results.load)
        Benchmarks.load = _load_benchmarks(Benchmarks.load)
