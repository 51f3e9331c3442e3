"""Result files and records that a site leaves out, with reasons. asv itself names them only in the terminal."""

from collections.abc import Collection
from pathlib import Path

from perf.harness import records
from perf.site import recorded

MACHINE = "machine.json"
"""Name of asv's file about a machine, without which it skips the machine's results."""


def left_out(folder: Path, published: Collection[str]) -> list[tuple[str, str]]:
    """Return name and reason of a machine's result files that asv skips or that are of unpublished commits."""
    paths = [path for path in sorted(folder.glob("*.json")) if path.name != MACHINE]
    if paths and (why := _trouble_of_machine(folder / MACHINE)):
        return [(MACHINE, f"{why}, so asv skips the {len(paths)} result files beside it")]
    found = [(path.name, _trouble(path, published)) for path in paths]
    return [(name, why) for name, why in found if why]


def unreadable(directory: Path, machine: str) -> list[tuple[str, str]]:
    """Return name and reason of each commit's records of another form, and warn in the terminal."""
    from asv.console import log

    found = []
    for commit in records.commits(directory, machine):
        if trouble := recorded.read(directory, machine, commit).trouble:
            found.append((f"{commit[:8]}.jsonl.gz", trouble))
            log.warning(f"{directory / machine / commit}.jsonl.gz {trouble}")
    return found


def _trouble_of_machine(path: Path) -> str:
    from asv.machine import Machine
    from asv.util import UserError, load_json

    try:
        found = load_json(str(path), api_version=Machine.api_version)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except UserError:
        return "is not of asv's form"
    name = found.get("machine")
    return "" if name == path.parent.name else f"names the machine {name!r:.60}"


def _trouble(path: Path, published: Collection[str]) -> str:
    from asv.results import Results
    from asv.util import UserError

    path = path.absolute()  # asv's messages contain the absolute path.
    try:
        commit = Results.load(str(path)).commit_hash
    except UserError as error:
        return str(error).replace(f"{path} ", "").replace(f" in file '{path}'", "")
    except (OSError, KeyError, TypeError, ValueError) as error:
        return f"is not of asv's form: {type(error).__name__}: {error}"
    return "" if commit in published else f"is of {str(commit)[:8]}, which no published branch has"
