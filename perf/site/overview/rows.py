"""Measured classes of each machine, from asv's graphs without reading records."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perf.site import asv_graphs, pages

METHOD = "track_time"
"""Stands for its class, where a class has it."""


@dataclass(frozen=True)
class MeasuredClass:
    """An asv class on one machine."""

    benchmark: str
    """`module.Class`."""

    method: str
    """Whose history stands for the class."""

    cells: int
    """Number of cases measured at any commit."""

    grid: int
    revisions: set[int]
    """asv's numbers of the commits with a number, the newest the highest."""

    case: dict[str, Any]
    """Parameters of the case measured most often, since asv's default case may have one point."""

    newest: Sequence[int]
    """asv's number of each measured case's newest commit with a number."""


def classes_of(graphs: Iterable[tuple[str, Any]], benchmarks: Any, machine: str) -> list[MeasuredClass]:
    """Return measured classes by name, those of a CPU (smoke) last. Graphs of all environments count."""
    of_class: dict[str, dict[str, list[Any]]] = {}
    for graph in asv_graphs.of(graphs, machine):
        if graph.benchmark_name in benchmarks:
            benchmark, _, method = graph.benchmark_name.rpartition(".")
            of_class.setdefault(benchmark, {}).setdefault(method, []).append(graph)
    found = []
    for benchmark in sorted(of_class, key=lambda one: (one.startswith("smoke."), one)):
        for method in sorted(of_class[benchmark], key=lambda one: (one != METHOD, one)):  # the first with a number
            cells, newest, revisions = _measured(of_class[benchmark][method])
            if revisions:
                known = benchmarks[f"{benchmark}.{method}"]
                cases = pages.asv_cells(known)
                case = cases[max(cells, key=cells.__getitem__)]
                found.append(
                    MeasuredClass(benchmark, method, len(cells), len(cases), revisions, case, list(newest.values()))
                )
                break
    return found


def _measured(graphs: Iterable[Any]) -> tuple[Counter[int], dict[int, int], set[int]]:
    """Return the number of commits with a number and the newest one, by index of the case; and all such commits."""
    cells, newest, revisions = Counter[int](), dict[int, int](), set[int]()
    for graph in graphs:
        for revision, values, _ in asv_graphs.points(graph):
            if measured := {index for index, one in enumerate(values) if asv_graphs.is_number(one)}:
                cells.update(measured)
                newest |= {index: max(revision, newest.get(index, revision)) for index in measured}
                revisions.add(revision)
    return cells, newest, revisions
