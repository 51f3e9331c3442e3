"""Series of a machine from asv's graphs, and their steps."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf.gate.verdicts import Quantity, Verdict, Word
from perf.selection import Negligible, runs_project_code
from perf.site import asv_graphs, pages
from perf.site.changes.finder import Drift, Step, exact_steps, find

ALLOCATED = {"1", "2"}
"""Versions of the harness that counted the allocator's blocks, which vary by a MiB with its cache."""

BLOCKS = 0.01
"""Tolerance of such bytes, and of bytes counted by two versions of the harness."""

OfRevision = Callable[[int], Callable[[str, tuple[Any, ...]], str]]
"""Maps a revision, then a case by class and parameters, to a fact on record."""


@dataclass(frozen=True)
class Series:
    """One case of one quantity, in one environment."""

    method: str
    """asv's name: `module.Class.track_time`."""

    params: dict[str, Any]
    quantity: Quantity
    revisions: tuple[int, ...]
    """asv's numbers of the commits with a value, oldest first."""

    values: tuple[float, ...]
    sample_noise: float
    """Relative noise of a value given its samples: the median over the values."""

    counted: tuple[str, ...] = ()
    """Version of the harness that counted each value in bytes; "" if unknown."""

    sessions: tuple[int, ...] | None = None
    """Number of each value's session; None if unknown."""

    @property
    def is_control(self) -> bool:
        """Whether it runs no project code, so that the machine caused any change."""
        return not runs_project_code(self.method.rpartition(".")[0], self.params)

    @property
    def name(self) -> str:
        """The gate's and asv's name of the case, with the method if the class has several of a kind."""
        benchmark, _, track = self.method.rpartition(".")
        called = benchmark if track in ("track_time", "track_peak_memory") else self.method
        return f"{called}({', '.join(map(repr, self.params.values()))})"


@dataclass(frozen=True)
class Drifting:
    """A series with a drift and no step."""

    series: Series
    drift: Drift


@dataclass(frozen=True)
class Change:
    """A step of one series; `step.border` marks a step explained by sessions."""

    series: Series
    step: Step
    back: int | None
    """First revision at which most of it was reverted; None if it persists."""

    @property
    def revision(self) -> int:
        """Revision of the first value at the new level."""
        return self.series.revisions[self.step.index]

    @property
    def last_before(self) -> int:
        """Revision of the last value at the old level. Revisions between were not measured."""
        return self.series.revisions[self.step.index - 1]

    @property
    def verdict(self) -> Verdict:
        """The change as a verdict of the gate."""
        one, worse = self.step, self.step.change > 0
        words: dict[Quantity, tuple[Word, Word]] = {
            "time": ("FASTER", "SLOWER"),
            "peak_memory": ("SMALLER", "LARGER"),
        }
        word = words[self.series.quantity][worse]
        numbers = (one.before, one.after, one.change, one.low, one.high)
        return Verdict(self.series.name, self.series.quantity, word, *numbers, None, False, "")


def series_of(
    graphs: Iterable[tuple[str, Any]],
    benchmarks: Mapping[str, Any],
    machine: str,
    harness_of: OfRevision = lambda revision: lambda *case: "",
    sitting_of: OfRevision | None = None,
) -> Iterator[Series]:
    """Yield a machine's series of times and bytes with at least two values. Each environment's graph is a history.

    A history spans all versions of the harness, so that a harness that moves times shows as a step. `harness_of` maps
    a revision's cases to the version, `sitting_of` to the session; "" and None if unknown.
    """
    for graph in asv_graphs.of(graphs, machine):
        known = benchmarks.get(graph.benchmark_name)
        if not known or known["unit"] not in ("seconds", "bytes"):
            continue
        quantity: Quantity = "time" if known["unit"] == "seconds" else "peak_memory"
        points = list(asv_graphs.points(graph))
        for index, params in enumerate(pages.asv_cells(known)):
            case = graph.benchmark_name.rpartition(".")[0], tuple(params.values())
            taken = [
                (revision, values[index], weights[index])
                for revision, values, weights in points
                if asv_graphs.is_number(values[index]) and 0 < values[index] < math.inf
            ]
            if len(taken) < 2:
                continue
            revisions, values, weights = zip(*taken, strict=True)
            if quantity == "peak_memory":
                counted = tuple(harness_of(revision)(*case) for revision in revisions)
                yield Series(graph.benchmark_name, params, quantity, revisions, values, 0.0, counted)
                continue
            sittings = [sitting_of(one)(*case) for one in revisions] if sitting_of else []
            numbers = {sitting: at for at, sitting in enumerate(dict.fromkeys(sittings))}
            sessions = tuple(numbers[one] for one in sittings) or None
            noise = _sample_noise(values, weights)
            yield Series(graph.benchmark_name, params, quantity, revisions, values, noise, sessions=sessions)


def judge(series: Iterable[Series], negligible: Negligible) -> tuple[list[Change], list[Drifting]]:
    """Return all steps, newest then largest first, and all drifts, fastest first."""
    changes, drifting = list[Change](), list[Drifting]()
    for one in series:
        found, drift = _found(one, negligible)
        changes += (Change(one, step, _back(one, step)) for step in found)
        drifting += [Drifting(one, drift)] if drift else []
    changes.sort(key=lambda one: (-one.revision, -abs(math.log1p(one.step.change)), one.series.name))
    return changes, sorted(drifting, key=lambda one: (-abs(math.log1p(one.drift.rate)), one.series.name))


def _found(series: Series, negligible: Negligible) -> tuple[list[Step], Drift | None]:
    if series.quantity == "peak_memory":
        return exact_steps(series.values, _tolerances(series)), None
    relative, seconds = negligible.get(series.method.rpartition(".")[0], (0.01, 0.0))
    least = max(relative, seconds / statistics.median(series.values))
    found = find(series.values, least, series.sample_noise, series.sessions)
    return found.steps + found.borders, found.drift


def _tolerances(series: Series) -> list[float]:
    """Return the tolerance of each value after the first towards its predecessor."""
    pairs = itertools.pairwise(series.counted)
    return [0.0 if before == after and after not in ALLOCATED else BLOCKS for before, after in pairs]


def _back(series: Series, step: Step) -> int | None:
    """Return the revision from which all values are back at the older level; one time alone may be a bad run."""
    middle = math.sqrt(step.before * step.after)
    found = None
    for revision, value in zip(series.revisions[step.index + 1 :], series.values[step.index + 1 :], strict=True):
        if (value < middle) != (step.before < middle):
            found = None
        elif found is None:
            found = revision
    return found if series.quantity == "peak_memory" or found != series.revisions[-1] else None


def _sample_noise(values: Sequence[float], weights: Sequence[float | None]) -> float:
    """Return the median noise of values from asv's weights, the inverse half-widths of 99 % intervals."""
    known = [1 / (weight * value * 2.576) for value, weight in zip(values, weights, strict=True) if weight]
    return statistics.median(known) if known else 0.0
