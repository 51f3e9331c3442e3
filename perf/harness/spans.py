"""Unions of time spans, each (start, end) in seconds."""

from collections.abc import Iterable

Span = tuple[float, float]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans as spans that do not touch, in order."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def covered_s(spans: Iterable[Span]) -> float:
    """Return the seconds that at least one span covers."""
    return sum(end - start for start, end in merged(spans))
