"""Rows of a study, groups of them, and a failure as a row. `row_forms` has their form in every document."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from perf.harness.status import failure

Row = dict[str, Any]
"""A row under construction, or the cells of a table."""

Spans = list[list[float]]
"""Start and end of each span, in seconds."""


def grouped(rows: Iterable[dict[str, Any]], *names: str) -> Iterator[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Yield the rows with the same values of `names`, in the order of their first row."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from groups.items()


def differing(rows: Sequence[Row], names: Sequence[str], *, always: Sequence[str] = ()) -> list[str]:
    """Return those of `names` of which the rows have several values, and those of `always`."""
    return [name for name in names if name in always or len({row.get(name) for row in rows}) > 1]


def refusal(error: BaseException) -> Row:
    """Return status and reason of work that raised `error`."""
    return refused(failure(error))


def refused(reply: Row) -> Row:
    """Return status and reason of a failed reply; out of memory, the reason is the requested size."""
    reason = requested_size(reply["reason"]) if reply["status"] == "out_of_memory" else reply["reason"]
    return {"status": reply["status"], "reason": reason}


def requested_size(error: str) -> str:
    """Return the size of the allocation that failed: "requested 2.00 GiB"."""
    match = re.search(r"allocate ([\d.]+ \w+)", error)
    return f"requested {match[1]}" if match else (error.splitlines() or [""])[0]
