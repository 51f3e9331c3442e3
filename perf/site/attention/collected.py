"""Newest grid of each attention benchmark on a machine."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perf.harness import records
from perf.harness.records import CaseResult
from perf.site import pages
from perf.site.attention.catalogue import SECTIONS
from perf.site.changes.rows import Series, series_of
from perf.site.estimate import MIN_VISITS
from perf.site.newest import Site


@dataclass(frozen=True)
class Measured:
    """Records of one benchmark at one commit on one machine."""

    machine: str
    benchmark: str
    commit: pages.Commit
    results: list[CaseResult]
    series: frozenset[str]
    """Names of asv's benchmarks with a graph of this machine."""

    history: tuple[Series, ...] = ()
    newer: int = 0
    """Commits since that have a few of its cases, which its history shows."""

    def link(self, method: str, params: dict[str, Any]) -> str:
        """asv's graph of one series, "" if there is none."""
        return pages.Machine(self.machine, self.series).graph(f"{self.benchmark}.{method}", params)


@dataclass(frozen=True)
class MachineAttention:
    """Attention benchmarks of one machine."""

    name: str
    measured: Sequence[Measured]
    silence: str = ""
    """Why there is nothing to show."""


def collect(site: Site, machine: str) -> MachineAttention:
    """Return the newest published grid of each benchmark, in the page's order."""
    commits = site.commits(machine)
    known = list(SECTIONS)
    measured = [
        Measured(
            machine,
            benchmark,
            site.describe(commit),
            results,
            site.series(machine),
            _history(site, benchmark, machine),
            newer,
        )
        for benchmark, commit, results, newer in _newest(site, machine, commits)
    ]
    if measured:
        return MachineAttention(machine, sorted(measured, key=lambda one: known.index(one.benchmark)))
    if commits:
        return MachineAttention(machine, [], "has records, but none of attention.")
    recorded = records.commits(site.directory, machine)
    why = "has records, but none of a commit that this site publishes." if recorded else "has no records yet."
    return MachineAttention(machine, [], why)


def _newest(site: Site, machine: str, commits: Iterable[str]) -> Iterator[tuple[str, str, list[CaseResult], int]]:
    """Yield each known benchmark at the newest commit with at least half of the largest number of complete cases.

    A case is complete with enough visits for an interval, or without samples: an interrupted run has few such cases.
    The few that a commit's history takes, without most of ours and of the peers, are no grid to compare in. The last is
    how many commits are newer.
    """
    found: dict[str, dict[str, list[CaseResult]]] = {}
    for commit in commits:
        for result in site.results(machine, commit):
            if result.benchmark in SECTIONS:
                found.setdefault(result.benchmark, {}).setdefault(commit, []).append(result)
    for benchmark, by_commit in found.items():
        complete = {
            commit: sum(not one.visits_s or len(one.visits_s) >= MIN_VISITS for one in results)
            for commit, results in by_commit.items()
        }
        for newer, (commit, results) in enumerate(by_commit.items()):
            if 2 * complete[commit] >= max(complete.values()):
                yield benchmark, commit, results, newer
                break


def _history(site: Site, benchmark: str, machine: str) -> tuple[Series, ...]:
    """Return the series of our implementation. Each environment's graph counts by itself."""
    section = SECTIONS[benchmark]
    name = f"{benchmark}.{section.method}"
    known = {name: site.benchmarks[name]} if name in site.benchmarks else {}
    return tuple(one for one in series_of(site.graphs, known, machine) if one.params.get("impl") == section.ours)
