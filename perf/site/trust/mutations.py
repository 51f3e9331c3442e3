"""Mutation scores on file, `<machine>/mutations/<time>.json`, validated as untrusted input."""

from dataclasses import dataclass
from pathlib import Path

from perf.gate.mutations import VERSION, scores_by_kind
from perf.gate.mutations import mutations as listed
from perf.gate.rate import Rate
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
    found, skipped = kept.read_folder(directory / machine / "mutations", parse)
    newest = {(one.kind, one.name): one for _, planted in found for one in planted}
    return [newest[key] for one in listed() if (key := (one.kind, one.name)) in newest], skipped


def parse(text: str) -> list[Planted]:
    """Parse a file's contents. Raises `kept.Unreadable`, or ValueError or RecursionError if it is not JSON."""
    with kept.document(text, VERSION) as document:
        commit = kept.text(document["commit"])
        names = ("kind", "name", "wanted", "word", "reason")
        attempts = [{name: kept.text(one[name]) for name in names} for one in document["attempts"]]
        return [Planted(**one, commit=commit) for one in attempts]


def scores(planted: list[Planted]) -> list[tuple[str, Rate]]:
    """Return the rate of each kind, and of all; what has no verdict does not count."""
    return scores_by_kind([(one.kind, one.word, one.is_found) for one in planted])
