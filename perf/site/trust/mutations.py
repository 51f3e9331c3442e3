"""Mutation scores on file, `<machine>/mutations/<time>.json`, validated as untrusted input."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.forms import parsed
from perf.gate.mutations import VERSION, scores_by_kind
from perf.gate.mutations import mutations as listed
from perf.gate.rate import Rate
from perf.gate.report import document
from perf.site import kept


@dataclass(frozen=True)
class Planted:
    """A mutation and the verdict on its row."""

    kind: str
    name: str
    wanted: str
    word: str
    """"" if there was no verdict."""

    reason: str
    commit: str

    @property
    def is_found(self) -> bool:
        """Whether the verdict is the wanted one."""
        return self.word == self.wanted


def read(directory: Path, machine: str) -> tuple[list[Planted], list[tuple[str, str]]]:
    """Return the newest outcome of each listed mutation, and name and reason of each unreadable file.

    Raises nothing.
    """
    found, skipped = kept.read_folder(directory / machine / "mutations", _read)
    newest = {(one.kind, one.name): one for planted in found for one in planted}
    return [newest[key] for one in listed() if (key := (one.kind, one.name)) in newest], skipped


def _read(path: Path) -> list[Planted]:
    with document(path, VERSION) as found:
        attempts = parsed(list[dict[str, Any]], found.get("attempts"), "attempts")
        return [parsed(Planted, one | {"commit": found.get("commit")}) for one in attempts]


def scores(planted: list[Planted]) -> list[tuple[str, Rate]]:
    """Return the rate of each kind, and of all; what has no verdict does not count."""
    return scores_by_kind([(one.kind, one.word, one.is_found) for one in planted])
