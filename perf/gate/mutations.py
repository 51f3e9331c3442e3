"""Slow-downs and leaks of real kinds, planted in the measured code: `mutations.toml` lists them.

A mutation is an edit of one file and the row that it makes worse. `mutation_score` gates each as a commit, alone.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from perf.gate.rate import Rate
from perf.gate.verdicts import Word

VERSION = 1
"""Version of the records of a score."""

LIST = Path(__file__).with_name("mutations.toml")


@dataclass(frozen=True)
class Mutation:
    """An edit that makes the measured code worse and leaves its results right, unless it is wanted BROKEN."""

    kind: str
    name: str
    file: str
    """Path in the repository."""

    old: str
    """Text that stands in the file once."""

    new: str
    row: str
    """Regular expression that selects the row, as `-b` does."""

    wanted: Word = "SLOWER"
    """The verdict that counts as found."""

    def plant(self, checkout: Path) -> None:
        """Edit the file. Raises `click.ClickException` with one line where the text is not there once."""
        path = checkout / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (count := text.count(self.old)) != 1:
            raise click.ClickException(
                f"{self.name}: the text to replace stands {count} times in {self.file}; allowed: 1"
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def mutations() -> tuple[Mutation, ...]:
    """Read the list."""
    document = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return tuple(Mutation(**one) for one in document["mutation"])


def scores_by_kind(outcomes: Sequence[tuple[str, str, bool]]) -> list[tuple[str, Rate]]:
    """Return the rate of each kind, and of all, over (kind, word, is found); what has no verdict does not count."""
    counted = [(kind, is_found) for kind, word, is_found in outcomes if word]
    kinds = {kind: [is_found for of, is_found in counted if of == kind] for kind, _ in counted}
    return [(kind, Rate(sum(of), len(of))) for kind, of in {**kinds, "all": [found for _, found in counted]}.items()]
