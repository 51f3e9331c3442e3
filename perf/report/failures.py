"""Cases without a number, by reason."""

from collections.abc import Iterable
from typing import Any

from perf.harness.records import CaseResult
from perf.report.attention_catalogue import status


def by_reason(results: Iterable[CaseResult]) -> list[dict[str, Any]]:
    """Each reason with the cases that have it. The clock is left out: a step that fails, fails by every clock."""
    groups: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.status != "ok":
            shown = [str(value) for axis, value in result.params.items() if axis != "clock"]
            groups.setdefault((result.status, result.reason), []).append(", ".join(shown))
    return [
        {"status": status(name)[0], "reason": reason, "cases": list(dict.fromkeys(cases))}
        for (name, reason), cases in groups.items()
    ]
