"""asv reads no result that is none: what fails the check is left out with a warning that names it, the rest is taken.

asv has no hook between a file and its tables, so the two methods that read are wrapped.
"""

import functools
import html
import json
from pathlib import Path
from typing import Any

from asv.benchmarks import Benchmarks
from asv.console import log
from asv.results import Results
from asv.util import UserError

from perf.stored import problem_of_benchmark, problem_of_results


def _load_results(load: Any) -> Any:
    @functools.wraps(load.__func__)
    def checked(cls: Any, path: str, machine_name: str | None = None) -> Any:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError:
            document = None  # asv has its own words
        except (ValueError, RecursionError) as error:
            raise UserError(f"Error parsing JSON: {error} in file '{path}'") from None
        if isinstance(document, dict) and document.get("version") == cls.api_version:  # of other versions asv speaks
            if wrong := problem_of_results(document):
                raise UserError(f"{path} is left out: {wrong}")
        elif document is not None and not isinstance(document, dict):
            raise UserError(f"{path} is left out: {problem_of_results(document)}")
        return load.__func__(cls, path, machine_name)

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


def install() -> None:
    """Wrap asv's two methods, once."""
    if not hasattr(Results.load, "__wrapped__"):
        Results.load = _load_results(Results.load)
        Benchmarks.load = _load_benchmarks(Benchmarks.load)
