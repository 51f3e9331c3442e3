"""Tables that a reader sorts and filters: cells by column title, for the macro `cases` of `templates/macros.html`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf import units
from perf.harness.records import CaseResult
from perf.harness.status import abbreviation
from perf.site.estimate import Estimate

Row = tuple[str, Mapping[str, "Cell"]]
"""Name of a row, for a screen reader, and its cells by column title; the first one heads the row."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str = ""
    value: Any = None
    """What the column is sorted and filtered by; None of a cell without a number."""

    href: str = ""
    beside: str = ""
    """Quiet text after it."""

    title: str = ""
    """Shown under the pointer."""

    classes: str = ""
    share: float | None = None
    """Length of a bar beside the number, from 0 to 1."""

    parts: Sequence[tuple[str, float]] = ()
    """A bar: the name and share of each part."""

    commits: Sequence[str] = ()
    picture: Mapping[str, Any] | None = None
    """A sparkline."""

    is_number: bool = False
    is_axis: bool = False
    """Whether the column has a filter."""

    @property
    def has_content(self) -> bool:
        """Whether it shows anything."""
        return bool(self.text or self.parts or self.commits or self.picture)

    @property
    def sorted_by(self) -> str:
        """`value` as an attribute."""
        return "" if self.value is None else f"{self.value:.6g}" if isinstance(self.value, float) else str(self.value)

    @property
    def says_its_value(self) -> bool:
        """Whether its text is `sorted_by`, so that no attribute repeats it: a sixth of the largest page."""
        return bool(self.text) and not self.beside and self.sorted_by == self.text


@dataclass(frozen=True)
class Column:
    """A column that has a cell with content."""

    title: str
    is_number: bool
    is_axis: bool
    is_sortable: bool


@dataclass(frozen=True)
class Table:
    """Columns, and the cells of each row."""

    columns: Sequence[Column]
    rows: Sequence[tuple[str, Sequence[Cell]]]

    def has(self, title: str) -> bool:
        """Whether there is such a column."""
        return any(column.title == title for column in self.columns)


def table(rows: Iterable[Row]) -> Table | None:
    """Return a table without the columns in which no cell has content; None without rows."""
    listed = list(rows)
    if not listed:
        return None
    titles = dict.fromkeys(title for _, row in listed for title in row)
    every = [(title, [row.get(title, Cell()) for _, row in listed]) for title in titles]
    shown = [(title, each) for title, each in every if any(one.has_content for one in each)]
    columns = [
        Column(
            title,
            is_number=any(one.is_number for one in each),
            is_axis=any(one.is_axis for one in each),
            is_sortable=any(one.value is not None for one in each),
        )
        for title, each in shown
    ]
    names = (name for name, _ in listed)
    return Table(columns, list(zip(names, zip(*(each for _, each in shown), strict=True), strict=True)))


def text(words: str, **more: Any) -> Cell:
    """Return a cell of words, which its column is sorted by."""
    return Cell(words, words, **more)


def parameter(value: Any, words: str = "", **more: Any) -> Cell:
    """Return a cell that its table is filtered by."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return Cell(words or str(value), value, is_axis=True, is_number=is_number, **more)


def number(value: float | None, written: Callable[[Any], str], **more: Any) -> Cell:
    """Return a number's cell; an empty one of None."""
    return Cell(is_number=True) if value is None else Cell(written(value), value, is_number=True, **more)


def duration(
    result: CaseResult | None, found: Estimate | None, *, written: Callable[[float], str] = units.seconds, **more: Any
) -> Cell:
    """Return the cell of a case's time, or the reason why it has none."""
    if found:
        return number(found.median, written, **more)
    if result is None or result.status == "ok":
        return Cell(title="not measured", is_number=True)
    return Cell(abbreviation(result.status), title=result.reason, classes="failed", is_number=True)
