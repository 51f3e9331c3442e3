"""Worked problems of the course, and their text for a terminal."""

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from perf.units import counted
from perf.workloads import measured_module

MAX_WIDTH = 100


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


def lines_of(table: str) -> tuple[Line, ...]:
    """Return the figures of a table, a line each, with the fields of `Line` between bars."""
    return tuple(Line(*map(str.strip, line.split("|"))) for line in table.strip().splitlines())


def closed_forms(module: str) -> ModuleType:
    """Return the module `cs336_systems.accounting.<module>`."""
    return measured_module(f"accounting.{module}")


def text(problem: CourseProblem) -> Iterator[str]:
    """Yield the lines for a terminal."""
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    yield f"{problem.name} ({problem.edition}, {counted(problem.points, 'point')})"
    yield from textwrap.wrap(problem.given, width)
    for line in problem.lines:
        right = line.result or line.formula
        num_dots = width - 4 - len(line.what) - len(right)
        if num_dots >= 2:
            yield f"  {line.what} {'.' * num_dots} {right}"
        else:
            yield from textwrap.wrap(f"{line.what}:", width, initial_indent="  ", subsequent_indent="  ")
            yield from (one.rjust(width) for one in textwrap.wrap(right, width - 4))
        if line.result:
            formula = f"{line.formula}{f' = {line.substituted}' if line.substituted else ''}"
            yield from textwrap.wrap(formula, width, initial_indent=" " * 6, subsequent_indent=" " * 8)
    for paragraph in problem.answer.split("\n\n"):
        yield from textwrap.wrap(paragraph, width)
