"""Rows of the Roofline page: share of the ceiling by case, class and commit."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perf.harness.records import CaseResult
from perf.selection import is_control, runs_project_code
from perf.site import asv_graphs, pages
from perf.site.attention.catalogue import SECTIONS
from perf.site.ceiling import Bound, bound_of, intensity, rate
from perf.site.estimate import Estimate, estimate
from perf.site.newest import NewestCell

MOST_POINTS = 30
"""Commits of a history; asv's own graph has them all."""

VERSIONS = ("python", "torch", "triton")

Whose = Literal["ours", "peer", "control"]
"""Owner of a row. A peer is PyTorch's implementation; a control runs no project code."""


@dataclass(frozen=True)
class RooflineRow:
    """One case with a time and a ceiling."""

    cell: NewestCell
    time: Estimate
    bound: Bound

    @property
    def result(self) -> CaseResult:
        """Result of the cell."""
        return self.cell.result

    @property
    def fraction(self) -> float:
        """Share of the ceiling: minimum time over measured time."""
        return self.bound.seconds / self.time.median

    @property
    def whose(self) -> Whose:
        """Whose code it runs."""
        return whose(self.result)

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte."""
        return intensity(self.result)

    @property
    def flops_per_s(self) -> float | None:
        """FLOP/s; None for work without arithmetic."""
        return rate(self.result, self.time.median)

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of the bytes that every implementation must move."""
        return self.result.min_bytes / self.time.median


@dataclass(frozen=True)
class Class:
    """One asv class: its rows by fraction, worst first."""

    benchmark: str
    rows: Sequence[RooflineRow]

    @property
    def ours(self) -> Sequence[RooflineRow]:
        """Rows that represent the class: its controls if it has no others."""
        return [row for row in self.rows if row.whose != "peer"] or self.rows

    @property
    def median(self) -> float:
        """Fraction."""
        return statistics.median(row.fraction for row in self.ours)

    @property
    def peers_median(self) -> float | None:
        """Median of the peers."""
        peers = [row.fraction for row in self.rows if row.whose == "peer"]
        return statistics.median(peers) if peers and len(peers) < len(self.rows) else None


@dataclass(frozen=True)
class Point:
    """Median fraction of a fixed set of cases at one commit."""

    revision: int
    fraction: float
    versions: Mapping[str, str]
    """Versions by which asv distinguishes environments."""


@dataclass(frozen=True)
class History:
    """History of one class, oldest first."""

    cases: int
    """Number of cases in the set: those of ours measured most often, so that commits compare."""

    points: Sequence[Point]
    first: dict[str, Any]
    """Parameters of a case of the set: what asv would choose by itself may have been measured once."""


def whose(result: CaseResult) -> Whose:
    """Whose code a case runs."""
    params = result.params
    if is_control(result.benchmark):
        return "control"
    if result.benchmark in SECTIONS:
        return "ours" if params.get("impl") == SECTIONS[result.benchmark].ours else "peer"
    return "ours" if runs_project_code(result.benchmark, params) else "peer"


def rows_of(cells: Iterable[NewestCell]) -> list[RooflineRow]:
    """Return a row of every case with a time and a ceiling."""
    found = []
    for cell in cells:
        time, bound = estimate(cell.result), bound_of(cell.result)
        if time and bound and time.median > 0:
            found.append(RooflineRow(cell, time, bound))
    return found


def classes_of(cells: Mapping[str, Sequence[NewestCell]]) -> list[Class]:
    """Return classes with rows: the project's own, lowest median first, then controls."""
    found = [
        Class(benchmark, sorted(rows, key=lambda row: row.fraction))
        for benchmark, of_class in cells.items()
        if (rows := rows_of(of_class))
    ]
    return sorted(found, key=lambda one: (one.ours[0].whose == "control", one.median))


def history(one: Class, graphs: Iterable[tuple[str, Any]], benchmark: dict[str, Any], machine: str) -> History:
    """Compute a class's history from asv's graphs of `track_time`, an entry of benchmarks.json, without records.

    The ceilings are today's at every commit, so that what moves is the time.
    """
    bounds = {tuple(row.result.params.values()): row.bound.seconds for row in one.ours}
    every = [tuple(params.values()) for params in pages.asv_cells(benchmark)]
    cells = {cell: index for index, cell in enumerate(every) if cell in bounds}
    known = {index: bounds[cell] for cell, index in cells.items()}
    measured: list[tuple[int, Mapping[str, str], dict[int, float]]] = []
    for graph in asv_graphs.of(graphs, machine, benchmark["name"]):
        versions = {name: graph.params[name] for name in VERSIONS if graph.params.get(name)}
        for revision, values, _ in asv_graphs.points(graph):
            found = {index: values[index] for index in known if asv_graphs.is_number(values[index])}
            if found:
                measured.append((revision, versions, found))
    counts = {index: sum(index in found for _, _, found in measured) for index in known}
    often = [index for index, count in counts.items() if count == max(counts.values())]
    points = [
        Point(revision, statistics.median(known[index] / found[index] for index in often), versions)
        for revision, versions, found in sorted(measured, key=lambda each: each[0])
        if found.keys() >= set(often)
    ]
    first = next((row.result.params for row in one.ours if cells.get(tuple(row.result.params.values())) in often), {})
    return History(len(often), points[-MOST_POINTS:], first)
