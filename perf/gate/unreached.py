"""Find the rows that a change cannot reach: nothing that they ran, when the map was made, differs between the arms."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from perf.gate import checkouts
from perf.gate.evidence import Arm, Evidence
from perf.gate.verdicts import Unreached
from perf.harness import device
from perf.harness.reach import ReachMap
from perf.harness.records import read_machine
from perf.harness.sources import Sources
from perf.harness.working_tree import RECORDS
from perf.workloads import PACKAGE

SAMPLED_SHARE = 0.05
"""Share of the rows out of reach that are measured all the same, to test the map."""

DOCUMENTS = r"docs/|[^/]*\.md$|LICENSE$|\.gitignore$"
"""Start of the paths of files that nothing runs."""

NOT_OF_AN_ARM = (
    r"perf/|tests/|asv\.conf\.json$|\.github/|\.ci/|\.pre-commit-config\.yaml$|test_and_make_submission\.sh$"
)
"""Start of the paths of files that measure neither arm, or both alike: this checkout's `perf` does."""


@dataclass(frozen=True)
class Change:
    """Difference between the arms: paths, and the package's code."""

    name: str
    """Both commits; draws the sample."""

    paths: tuple[str, ...]
    base: Sources
    head: Sources

    @classmethod
    def between(cls, base: Arm, head: Arm, places: tuple[Path, Path]) -> "Change":
        """Read the packages that two arms have in these folders, with edits of commits there."""
        before, after = (Sources(place / PACKAGE) for place in places)
        return cls(f"{base.commit} {head.commit}", checkouts.changed_paths(base, head), before, after)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Paths of which nobody can say what they change: the build's settings, for example."""
        return self._but_for(rf"{PACKAGE}/|{DOCUMENTS}|{NOT_OF_AN_ARM}")

    @property
    def is_of_code(self) -> bool:
        """Whether a test could tell: False if only docstrings, comments and documents differ."""
        return self.is_of_definitions or bool(self._but_for(rf"{PACKAGE}/|{DOCUMENTS}"))

    @property
    def is_of_definitions(self) -> bool:
        """Whether any definition of the package, or a data file in it, differs: if not, no row can."""
        base, head = ({name: one.digest for name, one in arm.definitions.items()} for arm in (self.base, self.head))
        return base != head

    def _but_for(self, pattern: str) -> tuple[str, ...]:
        return tuple(path for path in self.paths if not re.match(pattern, path))


def change_between(base: Arm, head: Arm, places: tuple[Path, Path]) -> Change | None:
    """Compare the packages that two arms have in these folders.

    None for two environments, and for a commit against itself, which measures the machine.
    """
    if base.python or head.python or base.commit == head.commit:
        return None
    return Change.between(base, head, places)


def in_reach(
    evidence: Sequence[Evidence], change: Change, known: ReachMap | None = None
) -> tuple[list[Evidence], Unreached]:
    """Return the rows to measure, and those that the change cannot reach, by the map of this machine or `known`.

    Of a change of no definition no map is asked, so none has to be tested: no row is measured. Controls are measured
    for the sake of others only.
    """
    if change.uncovered:
        return list(evidence), Unreached(why_none=f"{change.uncovered[0]} differs, which no map covers")
    if not change.is_of_definitions:
        known = None
    else:
        machine = device.machine()["machine"]
        lines = read_machine(RECORDS, machine, partial(click.echo, err=True))
        known = known or ReachMap(lines, device.software())
        if not known.entries:
            return list(evidence), Unreached(why_none="no record tells, with these versions, what a row runs")
    chance = random.Random(change.name)
    measured, skipped, sampled = [], [], []
    for row in evidence:
        if row.is_control or (known and not known.holds(row.case, change.base, change.head)):
            measured.append(row)
        elif known and chance.random() < SAMPLED_SHARE:
            measured.append(row)
            sampled.append(row.case.key)
        else:
            skipped.append(row.case.key)
    if all(row.is_control for row in measured):
        measured = []
    return measured, Unreached(tuple(skipped), tuple(sampled))
