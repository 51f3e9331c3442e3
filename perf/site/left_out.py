"""Result files and records that a site leaves out, with reasons. asv itself names them only in the terminal."""

from collections.abc import Collection
from pathlib import Path

from perf.harness import records
from perf.site import recorded


def left_out(folder: Path, published: Collection[str]) -> list[tuple[str, str]]:
    """Return name and reason of a machine's result files that are unreadable or of unpublished commits."""
    found = [(path.name, _trouble(path, published)) for path in sorted(folder.glob("*.json"))]
    return [(name, why) for name, why in found if name != "machine.json" and why]


def unreadable(directory: Path, machine: str) -> list[tuple[str, str]]:
    """Return name and reason of each commit's records of another form, and warn in the terminal."""
    from asv.console import log

    found = []
    for commit in records.commits(directory, machine):
        if trouble := recorded.read(directory, machine, commit).trouble:
            found.append((f"{commit[:8]}.jsonl.gz", trouble))
            log.warning(f"{directory / machine / commit}.jsonl.gz {trouble}")
    return found


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
