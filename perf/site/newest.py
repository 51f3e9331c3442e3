"""Newest result of each case on a machine. asv's graphs name its commit, so that few records are read."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf.gate.evidence import Outcome
from perf.harness import records
from perf.harness.records import CaseResult
from perf.harness.status import NOT_APPLICABLE
from perf.machines import num_gpus, of_one_gpu
from perf.site import asv_graphs, pages, recorded


@functools.lru_cache(maxsize=64)  # Pages need the same few commits.
def read_commit(directory: Path, machine: str, commit: str) -> list[CaseResult]:
    """Read one result per case, of the readable records; the overview reports the others."""
    return records.summarize(recorded.read(directory, machine, commit).lines)


@dataclass(frozen=True)
class NewestCell:
    """A case and the newest commit with its result."""

    result: CaseResult
    commit: str


def commands(cells: Iterable[NewestCell]) -> list[str]:
    """Return the command that measures the cells' classes anew, for each commit that has some of them."""
    classes: dict[str, dict[str, None]] = {}
    for cell in cells:
        classes.setdefault(cell.commit, {})[re.escape(cell.result.benchmark)] = None
    return [f"asv run --bench '^({'|'.join(found)})\\.' {commit[:8]}^!" for commit, found in classes.items()]


@dataclass(frozen=True)
class Site:
    """Arguments of an asv publisher, and the folder of the records."""

    directory: Path
    graphs: Iterable[tuple[str, Any]]
    benchmarks: Any
    revisions: Mapping[str, int]
    """asv's number of each commit, by hash."""

    published: frozenset[str]
    """Hashes of the published commits."""

    describe: Callable[[str], pages.Commit]
    """Describes the commit of a hash."""

    newer: Mapping[str, int] = field(default_factory=dict)
    """Number of newer commits, by commit of the first branch."""

    numbered: Callable[[Iterable[str]], Mapping[str, int]] = lambda commits: {}
    """Maps commits, measured or not, to asv's numbers. Commits that the repository lacks are left out."""

    @functools.cached_property
    def hashes(self) -> dict[int, str]:
        """Hashes by asv's revision number."""
        return {revision: commit for commit, revision in self.revisions.items()}

    @functools.cached_property
    def machines(self) -> list[str]:
        """Machines with records or results, by GPU: that of the newest measured commit first, then of the most graphs.

        Those of a GPU are in the order of how many they have.
        """
        graphs = Counter(graph.params.get("machine", "") for _, graph in self.graphs)
        names = {*records.machines(self.directory), *graphs} - {""}
        newest = {name: max(self.measured(name), default=-1) for name in names}
        by_gpu: dict[str, list[str]] = {}
        for name in sorted(names, key=lambda name: (num_gpus(name), name)):
            by_gpu.setdefault(of_one_gpu(name), []).append(name)

        def place(siblings: list[str]) -> tuple[int, int, list[str]]:
            return -max(newest[name] for name in siblings), -max(graphs[name] for name in siblings), siblings

        return [name for siblings in sorted(by_gpu.values(), key=place) for name in siblings]

    def hardware(self, machine: str) -> str:
        """Name the GPU, or the CPU, of asv's machine file."""
        for graph in asv_graphs.of(self.graphs, machine):
            number, gpu = graph.params.get("num_gpu", ""), graph.params.get("gpu", "")
            return f"{number} \u00d7 {gpu}" if gpu and number not in ("", "1") else gpu or graph.params.get("cpu", "")
        return ""

    def series(self, machine: str) -> frozenset[str]:
        """Return names of asv's benchmarks with a graph of this machine."""
        return frozenset(graph.benchmark_name for graph in asv_graphs.of(self.graphs, machine))

    def commits(self, machine: str) -> list[str]:
        """Return commits with the newest result of any case, newest first.

        Commits with records and no results, left by an interrupted run, are included.
        """
        on_file = {
            self.revisions[one]: one for one in records.commits(self.directory, machine) if one in self.published
        }
        known = {revision for graph in asv_graphs.of(self.graphs, machine) for revision in graph.data_points}
        wanted = revisions(self.graphs, machine, on_file) | (on_file.keys() - known) | set(sorted(on_file)[-1:])
        return [on_file[one] for one in sorted(wanted, reverse=True)]

    def measured(self, machine: str) -> set[int]:
        """Return asv's numbers of the commits with a value of any case."""
        return {
            revision
            for graph in asv_graphs.of(self.graphs, machine)
            for revision, points in graph.data_points.items()
            if any(asv_graphs.is_number(one) for values in points for one in values)
        }

    def cells(self, machine: str) -> dict[str, list[NewestCell]]:
        """Return every case at its newest commit with records, by class, in the order of the class's grid."""
        found = cells_of((commit, self.results(machine, commit)) for commit in self.commits(machine))
        return {benchmark: sorted(cells, key=self._place) for benchmark, cells in found.items()}

    def failing(self, machine: str) -> list[CaseResult]:
        """Return the results of cases that failed at the newest commit that tried them, and are not merely n/a."""
        every = (cell.result for cells in self.cells(machine).values() for cell in cells)
        return [one for one in every if one.status not in ("ok", *NOT_APPLICABLE)]

    def results(self, machine: str, commit: str) -> list[CaseResult]:
        """Read a commit's results, but for cases that today's class of that name has not: other axes, other values."""
        return [one for one in read_commit(self.directory, machine, commit) if self._has(one)]

    def _has(self, one: CaseResult) -> bool:
        axes = self._axes.get(one.benchmark)
        return axes is None or (
            list(axes) == list(one.params) and all(repr(value) in axes[name] for name, value in one.params.items())
        )

    def _place(self, cell: NewestCell) -> list[int]:
        """Return the position of each of a case's values in its axis; of a class that is no more, no position."""
        axes = self._axes.get(cell.result.benchmark)
        return [axes[name].index(repr(value)) for name, value in cell.result.params.items()] if axes else []

    @functools.cached_property
    def _axes(self) -> dict[str, dict[str, list[str]]]:
        """Values of each axis, as Python writes them, by class."""
        return {
            name.rpartition(".")[0]: dict(zip(one["param_names"], one["params"], strict=True))
            for name, one in self.benchmarks.items()
        }


def revisions(graphs: Iterable[tuple[str, Any]], machine: str, on_file: Container[int]) -> set[int]:
    """Return asv's numbers of recorded commits with a case's newest value or a class's newest attempt.

    A graph is one method of a class in one environment; its points list a value or None for each case.
    """
    found = set[int]()
    for graph in asv_graphs.of(graphs, machine):
        tried = sorted((revision for revision in graph.data_points if revision in on_file), reverse=True)
        found.update(tried[:1])
        seen = set[int]()
        for revision in tried:
            measured = {
                index
                for values in graph.data_points[revision]
                for index, one in enumerate(values)
                if asv_graphs.is_number(one)
            }
            if not measured <= seen:
                found.add(revision)
                seen |= measured
    return found


def cells_of(results: Iterable[tuple[str, Iterable[CaseResult]]]) -> dict[str, list[NewestCell]]:
    """Return every case at the first commit with its result, by class."""
    found: dict[str, dict[tuple[Any, ...], NewestCell]] = {}
    for commit, of_commit in results:
        for result in of_commit:
            found.setdefault(result.benchmark, {}).setdefault(tuple(result.params.values()), NewestCell(result, commit))
    return {benchmark: list(cells.values()) for benchmark, cells in found.items()}


def harness_of(directory: Path, machine: str, commit: str) -> Callable[[str, tuple[Any, ...]], str]:
    """Map a case's class and parameters to its version of the harness; "" if unknown."""
    return _of_session(directory, machine, commit, lambda session: session["harness"])


def sitting_of(directory: Path, machine: str, commit: str) -> Callable[[str, tuple[Any, ...]], str]:
    """Map a case's class and parameters to the day and the device of its measurement; "" if unknown.

    A recorded session covers one commit. Commits measured one after another share day and device.
    """
    return _of_session(directory, machine, commit, lambda session: sitting(session["day"], session["device"]))


def sitting(day: str, device: Mapping[str, Any]) -> str:
    """Return the day and the device of a session."""
    return f"{day} {device.get('uuid', '')}".strip()


def _of_session(
    directory: Path, machine: str, commit: str, tell: Callable[[dict[str, Any]], str]
) -> Callable[[str, tuple[Any, ...]], str]:
    sessions = _read_sessions(directory, machine, commit)
    told = {one["id"]: tell(one) for one in sessions}
    if len(set(told.values())) == 1:  # The usual case needs no visits.
        return lambda *case: tell(sessions[0])
    measured = read_commit(directory, machine, commit)
    of_case = {(one.benchmark, tuple(one.params.values())): told[one.session.id] for one in measured}
    return lambda *case: of_case.get(case, "")


@functools.lru_cache(maxsize=1024)
def _read_sessions(directory: Path, machine: str, commit: str) -> list[dict[str, Any]]:
    return recorded.read(directory, machine, commit, kinds=("session",)).lines


@functools.lru_cache(maxsize=8)  # Changes are rendered commit by commit.
def outcomes_of(directory: Path, machine: str, commit: str) -> Mapping[tuple[str, tuple[Any, ...]], Outcome]:
    """Return kernels and peak allocations of each case at a commit, by class and parameters."""
    return {
        (one["benchmark"], tuple(one["params"].values())): Outcome.of(one)
        for one in recorded.read(directory, machine, commit).lines
        if "kernels" in one
    }


SOFTWARE = ("torch", "triton", "cuda", "cudnn", "nccl", "python")


def environment(directory: Path, machine: str, commit: str) -> dict[str, str]:
    """Return the versions, driver and harness of a commit's newest session; {} without one."""
    sessions = _read_sessions(directory, machine, commit)
    if not sessions:
        return {}
    newest = sessions[-1]
    found = {name: newest["software"].get(name, "") for name in SOFTWARE}
    found |= {"driver": str(newest["device"].get("driver", "")), "harness": newest["harness"]}
    return {name: value for name, value in found.items() if value}
