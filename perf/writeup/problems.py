"""A problem of the course: its points, the tests that hold it, and the measurements that it asks for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from perf.harness.status import ANSWERED
from perf.machines import of_one_gpu
from perf.writeup.source import Source

Axes = dict[str, Any]
PLACE = "perf/studies/results"


@dataclass(frozen=True)
class Need:
    """Rows that a problem asks for, and the command that makes them."""

    study: str
    """NAME of `python -m perf study NAME`, or an asv class: "attention.FlashAttention"."""

    options: str = ""
    asked: tuple[Axes, ...] = ({},)
    """Each is measured if a row has these values; {} stands for any row."""

    document: str = ""
    """The name of its JSON, where it is not the study's."""

    ranks: int = 1

    folder: str = ""
    """Folder in the machine's, for a study that is run more than once."""

    @property
    def is_asv(self) -> bool:
        """Whether asv measures it."""
        return "." in self.study

    def command(self, machine: str) -> str:
        """Shell command that makes the rows, run in the root of the repository."""
        if self.is_asv:
            return f"asv run -b '^{re.escape(self.study)}\\.' HEAD^!"
        place = machine if self.ranks == 1 else f"{of_one_gpu(machine)}-x{self.ranks}"
        out = "/".join(part for part in (PLACE, place, self.folder) if part)
        return " ".join(f"python -m perf study {self.study} {self.options} --out {out}".split())

    def missing(self, source: Source) -> list[Axes]:
        """Parts of `asked` without a number in the rows on file."""
        if self.is_asv:
            rows = source.newest_cells(self.study).to_dict("records")
        else:
            rows = [row for study in source.named(self.document or self.study) for row in study.rows]
        measured = [row for row in rows if row.get("status", "ok") in ANSWERED]
        return [axes for axes in self.asked if not any(axes.items() <= row.items() for row in measured)]


@dataclass(frozen=True)
class Problem:
    """One problem."""

    name: str
    points: int
    tests: tuple[str, ...]
    """Under tests/: a file, or file::function."""

    needs: tuple[Need, ...] = ()
    answered: Literal["measured", "worked", "code"] = "measured"
    """By rows; by a closed form; by code, which the tests hold."""

    def missing(self, source: Source) -> Iterator[str]:
        """The commands that would make what is not there."""
        for need in self.needs:
            if need.missing(source):
                yield need.command(source.machine)


@dataclass(frozen=True, eq=False)
class Edition:
    """The problems of a year's handout, in its order."""

    year: str
    problems: tuple[Problem, ...]
    xl: str
    """The name in rows and tables of the size that the handout calls xl."""

    @property
    def points(self) -> int:
        """The points of all problems."""
        return sum(problem.points for problem in self.problems)
