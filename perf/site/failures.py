"""Cases without a number, by reason."""

from collections.abc import Callable, Iterable
from typing import Any

from perf.harness.records import CaseResult
from perf.harness.status import Status, words


def values(result: CaseResult) -> str:
    """Format a case's parameters without the clock, since a failing step fails by every clock."""
    return ", ".join(str(value) for axis, value in result.params.items() if axis != "clock")


def with_class(result: CaseResult) -> str:
    """ "collectives.AllReduce(2, 100)": for a page of several classes."""
    return f"{result.benchmark}({values(result)})"


def by_reason(results: Iterable[CaseResult], name: Callable[[CaseResult], str] = values) -> list[dict[str, Any]]:
    """Group the names of failed cases by reason."""
    groups: dict[tuple[Status, str], list[str]] = {}
    for result in results:
        if result.status != "ok":
            groups.setdefault((result.status, result.reason), []).append(name(result))
    return [
        {"status": words(outcome), "reason": reason, "count": len(set(cases)), "cases": list(dict.fromkeys(cases))}
        for (outcome, reason), cases in groups.items()
    ]
