"""The material of the write-up: asv's table and the rows of the studies, of one machine."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perf.forms import matches
from perf.machines import of_one_gpu
from perf.site.loading import load
from perf.studies.on_file import OnFile, loaded
from perf.studies.rows import Row

if TYPE_CHECKING:
    import pandas

STUDIES = Path("studies") / "results"


@dataclass(frozen=True)
class Study:
    """One document that a study left behind."""

    name: str
    folder: Path
    """Within `STUDIES`: the machine's, or one in it where a study ran more than once."""

    document: dict[str, Any]

    @property
    def rows(self) -> list[Row]:
        """Its measured rows."""
        return self.document["rows"]


@dataclass(frozen=True)
class Source:
    """Everything on file of one machine; the folders of its siblings with more GPUs are nvidia-h200-x2 and so on."""

    machine: str
    folder: Path
    """A perf folder: results, records, studies/results."""

    frame: "pandas.DataFrame"
    studies: tuple[Study, ...]
    skipped: tuple[str, ...] = field(default=())
    """Files that could not be read, a line each."""

    _others: dict[str, "Source"] = field(init=False, repr=False, compare=False, default_factory=dict)
    _newest: "dict[tuple[str, str], pandas.DataFrame]" = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def documents(self) -> dict[str, dict[str, Any]]:
        """The machine's own documents, by their paths in its folder without .json: the rows of the answers."""
        mine = [one for one in self.studies if one.folder.is_relative_to(self.machine)]
        return OnFile({(one.folder / one.name).relative_to(self.machine).as_posix(): one.document for one in mine})

    def on(self, machine: str) -> "Source":
        """Everything on file of another machine, read once."""
        if machine not in self._others:
            studies, skipped = _studies(self.folder, machine)
            self._others[machine] = replace(self, machine=machine, studies=studies, skipped=skipped)
        return self._others[machine]

    def elsewhere(self, name: str) -> list[str]:
        """Other machines whose own folder has NAME.json."""
        machines = {path.parent.name for path in (self.folder / STUDIES).glob(f"*/{name}.json")}
        return sorted(machines - {self.machine})

    def named(self, name: str) -> list[Study]:
        """The documents of a study, of every number of GPUs."""
        return [one for one in self.studies if one.name == name]

    def newest_cells(self, benchmark: str, quantity: str = "time") -> "pandas.DataFrame":
        """The rows of the commit and environment with the most cells of a benchmark; of several such the newest.

        All callers share the frame.
        """
        if (benchmark, quantity) not in self._newest:
            self._newest[benchmark, quantity] = self._selected(benchmark, quantity)
        return self._newest[benchmark, quantity]

    def _selected(self, benchmark: str, quantity: str) -> "pandas.DataFrame":
        frame = self.frame
        if frame.empty:
            return frame
        mine = frame[
            (frame["machine"] == self.machine) & (frame["benchmark"] == benchmark) & (frame["quantity"] == quantity)
        ]
        if mine.empty:
            return mine
        run = ["commit", "environment"]
        counts = mine.groupby([*run, "date"]).size().reset_index(name="cells")
        best = counts.sort_values(["cells", "date"]).iloc[-1]
        return mine[(mine[run] == best[run]).all(axis=1)]


def read(folder: Path, machine: str | None) -> Source:
    """Read the results of `machine`, by default of the machine with the most on file.

    A file that cannot be read is left out with a line in `skipped`. Raises `click.ClickException` with one line for a
    folder or machine that is not there.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            frame = load(folder / "results")
        except ValueError as error:
            raise click.ClickException(f"{folder} was given; allowed: a perf folder with results ({error})") from None
    said = [str(one.message).replace(f"{folder}/", "") for one in caught]
    skipped = [one for one in said if re.search(r" (is left out|cannot be read): ", one)]
    counts = frame["machine"].value_counts()
    names = (path.name for path in (folder / STUDIES).glob("*") if path.is_dir())
    folders = sorted(names, key=lambda name: (-len(list(_documents(folder / STUDIES, name))), name))
    known = list(dict.fromkeys([*counts.index, *folders]))
    if not known:
        raise click.ClickException(f"{folder} holds no measurements; python -m perf demo or asv run makes some")
    chosen = machine or known[0]
    if chosen not in known:
        raise click.ClickException(f"machine {chosen!r} was given; allowed: {', '.join(known)}")
    studies, left_out = _studies(folder, chosen)
    return Source(chosen, folder, frame, studies, (*skipped, *left_out))


def _studies(folder: Path, machine: str) -> tuple[tuple[Study, ...], tuple[str, ...]]:
    """The documents of a machine that can be read, and a line for each of the others."""
    studies, skipped = [], []
    for path in _documents(folder / STUDIES, machine):
        try:
            studies.append(Study(path.stem, path.parent.relative_to(folder / STUDIES), _document(path)))
        except (OSError, ValueError, RecursionError) as error:
            skipped.append(f"{path.relative_to(folder)} is left out: {error}")
    return tuple(studies), tuple(skipped)


def _documents(folder: Path, machine: str) -> Iterator[Path]:
    for place in sorted({folder / machine, *folder.glob(f"{of_one_gpu(machine)}-x*")}):
        # `study accounting` measures nothing, and leaves a list.
        yield from sorted(path for path in place.rglob("*.json") if path.stem != "accounting")


def _document(path: Path) -> dict[str, Any]:
    found = loaded(path)
    parts: dict[str, Any] = {"rows": list, "device": dict, "software": dict[str, str], "command": str}
    if not isinstance(found, dict) or not all(matches(found.get(name), kind) for name, kind in parts.items()):
        raise ValueError("it is no document of a study")
    if not all(isinstance(row, dict) for row in found["rows"]):
        raise ValueError("its rows are no objects")
    if not found["rows"]:
        raise ValueError("it has no rows")
    return found
