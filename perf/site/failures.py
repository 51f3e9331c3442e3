"""Cases without a number, by reason."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perf.harness.records import CaseResult
from perf.harness.status import Status, words
from perf.labels import label
from perf.site.roofline.rows import whose
from perf.site.wording import sentence, value_text


def implementation(result: CaseResult) -> str:
    """ "SDPA flash": for a page of one class."""
    return label(result.params["impl"])


def class_and_implementation(result: CaseResult) -> str:
    """ "collectives.AllReduce": for a page of several classes."""
    return f"{result.benchmark}, {implementation(result)}" if "impl" in result.params else result.benchmark


def by_reason(
    results: Sequence[CaseResult],
    name: Callable[[CaseResult], str] = class_and_implementation,
    every: Sequence[CaseResult] | None = None,
) -> list[dict[str, Any]]:
    """Group cases without a number by name, status and reason: ours first, what cannot be had last.

    A group has the axes of which it lacks a value that its class has among `every`, by default `results`.
    """
    every = results if every is None else every
    groups: dict[tuple[str, Status, str], list[CaseResult]] = {}
    for result in results:
        if result.status != "ok":
            groups.setdefault((name(result), result.status, result.reason), []).append(result)
    found = [
        {
            "name": of,
            "is_ours": whose(failed[0]) == "ours",
            "is_unavailable": outcome == "unavailable",
            "status": words(outcome),
            "reason": reason,
            "count": len(_axes(failed)),
            "cases": _describe(_axes(failed), _axes(one for one in every if one.benchmark == failed[0].benchmark)),
        }
        for (of, outcome, reason), failed in groups.items()
    ]
    return sorted(found, key=lambda one: (not one["is_ours"], one["is_unavailable"]))


def _axes(results: Iterable[CaseResult]) -> list[dict[str, Any]]:
    """Return the cases' parameters without the implementation, and without the clock: a step fails by every clock."""
    every = [{axis: value for axis, value in one.params.items() if axis not in ("impl", "clock")} for one in results]
    return list({tuple(config.items()): config for config in every}.values())


def _describe(configs: Sequence[dict[str, Any]], every: Sequence[dict[str, Any]]) -> list[str]:
    """Name a block of the grid by its fixed axes ("dtype float32"), and other sets case by case."""
    spans = {axis: list(dict.fromkeys(config.get(axis) for config in configs)) for axis in configs[0]}
    everywhere = {axis: {config.get(axis) for config in every} for axis in spans}
    if math.prod(map(len, spans.values())) != len(configs):
        varied = [axis for axis in spans if len(everywhere[axis]) != 1]
        return [sentence({axis: config.get(axis) for axis in varied}) for config in configs]
    narrowed = {axis: values for axis, values in spans.items() if set(values) != everywhere[axis]}
    said = [f"{axis} {', '.join(value_text(axis, value) for value in values)}" for axis, values in narrowed.items()]
    return ["; ".join(said) or "every case"]
