"""Compare page: two measured commits of the reader's choice, case by case."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.site import pages
from perf.site.changes.rows import BLOCKS
from perf.site.compare import rows
from perf.site.newest import Site


@dataclass(frozen=True)
class MachineCommits:
    """A machine and its comparable commits."""

    name: str
    commits: Sequence[pages.Commit]
    """Newest first."""

    older: int = 0
    """Number of measured commits that are omitted as too old."""

    pair: tuple[int, int] = (1, 0)
    """Places of the base and head that stand first."""


def collect(site: Site, machine: str, html_dir: Path) -> MachineCommits:
    """Collect a machine's commits and write the file of each; see `rows.write`."""
    written = rows.write(site, machine, html_dir)
    older = max(0, len(rows.commits_of(site, machine)) - rows.MOST)
    return MachineCommits(machine, [site.describe(one) for one in written], older, rows.pair(written))


def render(project: str, machines: Iterable[MachineCommits], show_commit_url: str) -> str:
    """Render the page; the machine with the most commits comes first."""
    every = sorted(machines, key=lambda one: -len(one.commits))
    return pages.render(
        "compare",
        project,
        show_commit_url,
        machines={},  # they are chosen in the page, and have no place of their own in it
        measured=[
            {
                "machine": one.name,
                "commits": [(each.hash, each.date, each.subject) for each in one.commits],
                "pair": one.pair,
            }
            for one in every
            if len(one.commits) > 1
        ],
        older=[one for one in every if one.older],
        most=rows.MOST,
        alone=[one.name for one in every if len(one.commits) < 2],
        folder=rows.FOLDER,
        blocks=BLOCKS,
    )
