"""asv's published graphs, one of a method of a class in one environment."""

from collections.abc import Iterable, Iterator
from typing import Any

Points = Iterator[tuple[int, list[Any], list[Any]]]
"""asv's number of a commit, and of each case the value and its weight; None where there is none."""


def of(graphs: Iterable[tuple[str, Any]], machine: str, method: str | None = None) -> list[Any]:
    """Return a machine's graphs, of `module.Class.method` or of all."""
    mine = (graph for _, graph in graphs if graph.params.get("machine") == machine)
    return [graph for graph in mine if method in (None, graph.benchmark_name)]


def points(graph: Any) -> Points:
    """Yield the points of a graph, oldest first. asv has a list of one entry per case, or the only case's value."""
    for revision, value, weight in graph.get_data():
        yield revision, *(one if isinstance(one, list) else [one] for one in (value, weight))


def is_number(value: float | None) -> bool:
    """Whether asv stored a value; it stores None or NaN otherwise."""
    return value is not None and value == value
