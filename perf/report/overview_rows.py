"""What each machine measures, from the graphs that asv publishes: no record is read for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

METHOD = "track_time"
"""Stands for its class, where a class has it."""


@dataclass
class Class:
    """One asv class on one machine."""

    benchmark: str
    """`module.Class`."""

    method: str
    cells: int
    """With a number, at whatever commit."""

    grid: int
    revisions: set[int]
    """asv's numbers of the commits with a number, the newest the highest."""


def classes_of(graphs: Iterable[tuple[str, Any]], benchmarks: Any, machine: str) -> list[Class]:
    """Those with a number, by name, those of a CPU (smoke) last. Graphs of several environments count as one."""
    seen: dict[str, tuple[set[int], set[int]]] = {}
    for _, graph in graphs:
        if graph.params.get("machine") != machine or graph.benchmark_name not in benchmarks:
            continue
        cells, revisions = seen.setdefault(graph.benchmark_name, (set(), set()))
        for revision, value, *_ in graph.get_data():
            values = value if isinstance(value, list) else [value]
            measured = {index for index, one in enumerate(values) if one is not None}
            if measured:
                cells |= measured
                revisions.add(revision)
    found: dict[str, Class] = {}
    for name in sorted(seen, key=lambda one: (one.startswith("smoke."), not one.endswith(METHOD), one)):
        benchmark, _, method = name.rpartition(".")
        cells, revisions = seen[name]
        if revisions and benchmark not in found:
            grid = prod(map(len, benchmarks[name]["params"]))
            found[benchmark] = Class(benchmark, method, len(cells), grid, revisions)
    return sorted(found.values(), key=lambda one: (one.benchmark.startswith("smoke."), one.benchmark))
