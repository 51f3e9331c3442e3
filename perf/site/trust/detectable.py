"""Minimum detectable slow-down of each row, and the noise of identical code."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perf.gate.report import Ended, SelfTest
from perf.gate.verdicts import Verdict
from perf.selection import Negligible
from perf.site.axes import LogAxis

_FINEST, _COARSEST = 1e-5, 100.0
"""Limits of a picture's logarithmic axis."""

_MOST_DETECTABLE = 1.0
"""Upper limit of a minimum detectable slow-down in the picture."""


@dataclass(frozen=True)
class IdenticalRow:
    """A row of identical code."""

    verdict: Verdict
    floor: float | None
    """Negligible change as a share of its time; if not on file, that of its class today, if any."""


@dataclass(frozen=True)
class Spread:
    """Changes between visits to identical code over all rows of a class, as shares of the time."""

    benchmark: str
    rows: int
    visits: int
    median: float
    half: float
    """Median absolute change of a visit."""

    most: float
    """95th percentile of the absolute change of a visit."""


def newest(tests: Sequence[SelfTest]) -> tuple[SelfTest, Ended] | None:
    """Return the newest part on identical code with unmoved controls."""
    found = [(test, part) for test in tests for part in test.parts if not part.injection and not part.contaminated]
    return found[-1] if found else None


def rows(part: Ended, negligible: Negligible) -> list[IdenticalRow]:
    """Return rows by minimum detectable slow-down, those without one last."""
    found = [IdenticalRow(one, _floor(one, negligible)) for one in part.verdicts if one.quantity == "time"]
    return sorted(found, key=lambda row: (row.verdict.min_detectable or math.inf, row.verdict.key))


def spreads(tests: Iterable[SelfTest]) -> list[Spread]:
    """Return the spread of each class over identical-code parts with unmoved controls, smallest first."""
    by_class: dict[str, dict[str, list[float]]] = {}
    for test in tests:
        for part in test.parts:
            if part.injection or part.contaminated:
                continue
            for key, changes in part.visits.items():
                of_row = by_class.setdefault(benchmark_of(key), {}).setdefault(key, [])
                of_row.extend(change for _, change in changes)
    found = [_spread(name, of_rows) for name, of_rows in by_class.items() if any(of_rows.values())]
    return sorted(found, key=lambda one: (one.most, one.benchmark))


def benchmark_of(key: str) -> str:
    """`module.Class` of a row's key."""
    return key.partition("(")[0]


def axis_of(shares: Iterable[float]) -> LogAxis:
    """Return a logarithmic axis that contains all shares, clamped to a finite range."""
    return LogAxis([_clamped(share) for share in shares] or [0.01, 0.1])


def picture(shown: Sequence[IdenticalRow]) -> dict[str, Any]:
    """Return each row's mark and floor in a square of 100, y downwards, and the axis' ticks."""
    seen = [(row, row.verdict.min_detectable) for row in shown]
    marked = [(row, min(detectable, _MOST_DETECTABLE)) for row, detectable in seen if detectable is not None]
    axis = axis_of([detectable for _, detectable in marked] + [row.floor for row, _ in marked if row.floor])
    width = 100 / max(len(marked), 1)
    return {
        "ticks": [(tick, 100 - axis.at(tick)) for tick in axis.ticks],
        "width": round(width, 3),
        "marks": [
            {
                "row": row,
                "left": round(i * width, 3),
                "x": round((i + 0.5) * width, 3),
                "detectable": 100 - axis.at(detectable),
                "floor": 100 - axis.at(row.floor) if row.floor else None,
            }
            for i, (row, detectable) in enumerate(marked)
        ],
    }


def _floor(one: Verdict, negligible: Negligible) -> float | None:
    if one.negligible is not None:
        return _clamped(one.negligible)
    limits = negligible.get(benchmark_of(one.key))
    return _clamped(max(limits[0], limits[1] / one.base)) if limits and one.base and one.base > 0 else None


def _spread(name: str, of_rows: dict[str, list[float]]) -> Spread:
    changes = [_share(change) for of_row in of_rows.values() for change in of_row]
    sizes = sorted(map(abs, changes))
    return Spread(
        name, len(of_rows), len(changes), statistics.median(changes), statistics.median(sizes), _at_most(sizes, 0.95)
    )


def _at_most(ordered: Sequence[float], part: float) -> float:
    return ordered[math.ceil(part * len(ordered)) - 1]


def _share(log_change: float) -> float:
    return math.expm1(min(max(log_change, -_COARSEST), math.log(_COARSEST)))


def _clamped(share: float) -> float:
    return min(max(share, _FINEST), _COARSEST)
