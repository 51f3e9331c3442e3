"""Worked problems of the course, and their text for a terminal."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from perf.workloads import measured_module

WIDTH = 100


@dataclass(frozen=True)
class Line:
    """One figure of an answer."""

    what: str
    formula: str
    substituted: str = ""
    """The formula with its numbers; "" where that adds nothing."""

    result: str = ""
    """ "" where the formula is the answer."""


@dataclass(frozen=True)
class CourseProblem:
    """One problem of the course."""

    name: str
    """The course's name."""

    points: int
    edition: str
    """2025, 2026 or 2025 and 2026."""

    given: str
    lines: tuple[Line, ...]
    answer: str
    """In words; an empty line between paragraphs."""


def closed_forms(module: str) -> ModuleType:
    """Return the module `cs336_systems.accounting.<module>`."""
    return measured_module(f"accounting.{module}")


def text(problem: CourseProblem) -> Iterator[str]:
    """Yield the lines for a terminal."""
    points = f"{problem.points} point{'s' if problem.points > 1 else ''}"
    yield f"{problem.name} ({problem.edition}, {points})"
    yield from textwrap.wrap(problem.given, WIDTH)
    for line in problem.lines:
        right = line.result or line.formula
        yield f"  {line.what} {'.' * max(2, WIDTH - 4 - len(line.what) - len(right))} {right}"
        if line.result:
            yield f"      {line.formula}{f' = {line.substituted}' if line.substituted else ''}"
    for paragraph in problem.answer.split("\n\n"):
        yield from textwrap.wrap(paragraph, WIDTH)
