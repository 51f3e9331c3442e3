"""What a gate can see: of each row the smallest slow-down that would have shown, and how identical code scatters."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf.gate.verdicts import Verdict
from perf.site.axes import LogAxis
from perf.site.trust.records import Ended, SelfTest

Negligible = Mapping[str, tuple[float, float]]
"""Changes that a class (`module.Class`) calls negligible: up to this share, or up to these seconds."""

_FINEST, _COARSEST = 1e-5, 100.0
"""Shares between which a picture's logarithmic axis ends, whatever a file says."""

_MOST_VISIBLE = 1.0
"""A slow-down beyond which the smallest visible one is drawn as this: more of it says nothing more."""


@dataclass(frozen=True)
class Row:
    """A row of identical code."""

    verdict: Verdict
    floor: float | None
    """What was negligible, as a share of its time; where that was not kept, what its class calls so today, if any."""


@dataclass(frozen=True)
class Spread:
    """How visits to identical code changed, over all rows of a class; shares of the time."""

    benchmark: str
    rows: int
    visits: int
    median: float
    half: float
    """Half of the visits changed by at most this, in either direction."""

    most: float
    """95 % of them did."""


def newest(tests: Sequence[SelfTest]) -> tuple[SelfTest, Ended] | None:
    """The newest part on identical code whose controls held."""
    found = [(test, part) for test in tests for part in test.parts if not part.injection and not part.contaminated]
    return found[-1] if found else None


def rows(part: Ended, negligible: Negligible) -> list[Row]:
    """What shows best first; last what would have shown nothing."""
    found = [Row(one, _floor(one, negligible)) for one in part.verdicts if one.quantity == "time"]
    return sorted(found, key=lambda row: (row.verdict.smallest_visible or math.inf, row.verdict.key))


def spreads(tests: Iterable[SelfTest]) -> list[Spread]:
    """Of each class over all identical-code parts whose controls held, steadiest first."""
    by_class: dict[str, dict[str, list[float]]] = {}
    for test in tests:
        for part in test.parts:
            if part.injection or part.contaminated:
                continue
            for key, changes in part.changes.items():
                of_row = by_class.setdefault(benchmark_of(key), {}).setdefault(key, [])
                of_row.extend(change for _, change in changes)
    found = [_spread(name, of_rows) for name, of_rows in by_class.items() if any(of_rows.values())]
    return sorted(found, key=lambda one: (one.most, one.benchmark))


def benchmark_of(key: str) -> str:
    """`module.Class` of a row's key."""
    return key.partition("(")[0]


def axis_of(shares: Iterable[float]) -> LogAxis:
    """A logarithmic axis that holds all of these shares, and ends somewhere whatever a file says."""
    return LogAxis([_clamped(share) for share in shares] or [0.01, 0.1])


def picture(shown: Sequence[Row]) -> dict[str, Any]:
    """Where each row's mark and its floor lie in a square of 100, y downwards; and the axis' ticks."""
    seen = [(row, row.verdict.smallest_visible) for row in shown]
    marked = [(row, min(visible, _MOST_VISIBLE)) for row, visible in seen if visible is not None]
    axis = axis_of([visible for _, visible in marked] + [row.floor for row, _ in marked if row.floor])
    width = 100 / max(len(marked), 1)
    return {
        "ticks": [(tick, 100 - axis.at(tick)) for tick in axis.ticks],
        "width": round(width, 3),
        "marks": [
            {
                "row": row,
                "left": round(i * width, 3),
                "x": round((i + 0.5) * width, 3),
                "visible": 100 - axis.at(visible),
                "floor": 100 - axis.at(row.floor) if row.floor else None,
            }
            for i, (row, visible) in enumerate(marked)
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
