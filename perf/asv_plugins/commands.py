"""asv's commands, where asv 0.6.6 ends with a traceback or keeps results under a name that is no commit's."""

import functools
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from asv.commands import asv_profiling, rm
from asv.commands.preview import Preview
from asv.commands.run import Run
from asv.commands.setup import Setup
from asv.repo import get_repo
from asv.results import Results
from asv.util import UserError


def _tags_as_commits(run: Any) -> Any:
    """Return `Run.run`, for which TAGS are the tagged commits: asv keeps the results of TAGS under the tags' names."""

    @functools.wraps(run.__func__)
    def resolved(cls: Any, conf: Any, range_spec: Any = None, *arguments: Any, **options: Any) -> Any:
        if range_spec == "TAGS":
            newest_first = reversed(get_repo(conf).get_tags().values())
            range_spec = list(dict.fromkeys(newest_first))
        return run.__func__(cls, conf, range_spec, *arguments, **options)

    return classmethod(resolved)


def _refuse_unlinked(environments: Any) -> None:
    """Raise `UserError` for an environment of another type, before asv builds it and stores a failure of every row."""
    for environment in environments:
        if environment.tool_name != "linked":
            raise UserError(
                f"environment type {environment.tool_name or 'existing'} was given; allowed: linked (the one in "
                "asv.conf.json), because no other tells which commit's code is measured"
            )


def _linked_alone(command: Any) -> Any:
    """Return `Setup.perform_setup`, which run, continuous, find and setup call first, for linked environments alone."""

    @functools.wraps(command.__func__)
    def checked(cls: Any, environments: Any, *arguments: Any, **options: Any) -> Any:
        _refuse_unlinked(environments)
        return command.__func__(cls, environments, *arguments, **options)

    return classmethod(checked)


def _to_be_profiled(get_environments: Any) -> Any:
    @functools.wraps(get_environments)
    def checked(*arguments: Any, **options: Any) -> Any:
        environments = list(get_environments(*arguments, **options))
        _refuse_unlinked(environments)
        return environments

    return checked


def _naming_what_has_no_profile(get_profile: Any) -> Any:
    @functools.wraps(get_profile)
    def checked(self: Any, name: str) -> Any:
        if not self.has_profile(name):
            raise UserError(f"{name} has no profile, because it failed or is n/a; asv's output above has the reason")
        return get_profile(self, name)

    return checked


def _status(run: Any) -> Any:
    """Return `Setup.run_from_conf_args`, which ends with 0 after it has set up an environment: asv ends with 1."""

    @functools.wraps(run.__func__)
    def status(cls: Any, *arguments: Any, **options: Any) -> int:
        return 0 if run.__func__(cls, *arguments, **options) else 1

    return classmethod(status)


def _naming_the_port(run: Any) -> Any:
    @functools.wraps(run.__func__)
    def served(cls: Any, conf: Any, port: int = 0, *arguments: Any, **options: Any) -> Any:
        if not Path(conf.html_dir).is_dir():
            raise UserError(f"{conf.html_dir} is missing; `asv publish` writes it")
        try:
            return run.__func__(cls, conf, port, *arguments, **options)
        except (OSError, OverflowError) as error:
            raise UserError(f"port {port} was given; allowed: a free one, or none: {error}") from None

    return classmethod(served)


def _environment_of(results: Results) -> SimpleNamespace:
    """Return what `asv rm python=` reads of results, which have no `env`: the version of Python."""
    return SimpleNamespace(python=results.params.get("python"))


def _matches(value: str | None, pattern: str) -> bool:
    """Return whether a parameter's value matches the pattern of `asv rm`; a parameter that is missing does not."""
    return value is not None and fnmatchcase(value, pattern)


def install() -> None:
    """Wrap asv's functions, once a process."""
    if not hasattr(Setup.perform_setup, "__wrapped__"):
        Run.run = _tags_as_commits(Run.run)
        Setup.perform_setup = _linked_alone(Setup.perform_setup)
        Preview.run = _naming_the_port(Preview.run)
        Setup.run_from_conf_args = _status(Setup.run_from_conf_args)
        asv_profiling.get_environments = _to_be_profiled(asv_profiling.get_environments)
        Results.get_profile = _naming_what_has_no_profile(Results.get_profile)
        Results.env = property(_environment_of)
        rm.fnmatchcase = _matches
