"""Tables for a terminal: folded to its width, whatever their columns are."""

import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_WIDTH = 120
MIN_COLUMN = 8
"""Width below which no column is folded."""

GAP = 2
"""Spaces between two columns."""


def terminal_width() -> int:
    """Return the terminal's width, at most `MAX_WIDTH`, which is also that of a pipe."""
    return max(60, min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH))


def text_table(
    rows: Iterable[Mapping[str, Any] | str], *, keys: int = 1, align: Sequence[str] = (), width: int | None = None
) -> str:
    """Return a table of each row's cells by column title, no wider than `width`, by default the terminal's.

    A row that is a text is a line of its own, as wide as it is: a heading of those below, or a remark on those above.
    Where it is too wide, columns that are the same in every row become a line above it, then titles and cells are
    folded. Columns that still do not fit continue in another table below, which repeats the first `keys` columns.
    `align` is "left" or "right" for each column.
    """
    rows, width = list(rows), width or terminal_width()
    cells = [row for row in rows if not isinstance(row, str)]
    titles = list(dict.fromkeys(title for row in cells for title in row))
    columns = [_Column(title, [_text(row.get(title)) for row in cells]) for title in titles]
    for column, side in zip(columns, align, strict=False):
        column.align = side
    above = ""
    if _total(column.whole for column in columns) > width:
        same = [column for column in columns[keys:] if len(cells) > 1 and column.is_the_same]
        above = ", ".join(f"{column.title} {column.cells[0]}" for column in same)
        columns = [column for column in columns if column not in same]
    if not columns:
        return ""
    tables = [_format(block, rows, width) for block in _blocks(columns, keys, width)]
    return "\n\n".join([*([textwrap.fill(above, width)] if above else []), *tables])


def prose(text: str) -> str:
    """Return a sentence, folded at words on a terminal; in a pipe it is left whole, for whoever searches it."""
    return textwrap.fill(text, terminal_width()) if sys.stdout.isatty() and len(text) > MAX_WIDTH // 2 else text


class _Column:
    def __init__(self, title: str, cells: list[str]):
        self.title, self.cells, self.align = title, cells, "left"
        longest = max((len(line) for cell in cells for line in cell.splitlines()), default=0)
        self.whole = max(longest, len(title))
        """Width with nothing folded."""
        self.titled = max(longest, *map(len, title.split()), 1) if title else max(longest, 1)
        """Width with the title folded at its spaces."""
        self.word = max((len(word) for text in (title, *cells) for word in text.split()), default=1)
        """Width below which a word is broken."""

    @property
    def is_the_same(self) -> bool:
        return bool(self.cells[0]) and len(set(self.cells)) == 1

    @property
    def least(self) -> int:
        return min(self.titled, MIN_COLUMN)


def _blocks(columns: list[_Column], keys: int, width: int) -> list[list[_Column]]:
    """Return the columns of each table: all of them if they fit when they are folded."""
    if _total(column.least for column in columns) <= width:
        return [columns]
    repeated, blocks = columns[:keys], [columns[:keys]]
    for column in columns[keys:]:
        if len(blocks[-1]) > keys and _total(one.titled for one in [*blocks[-1], column]) > width:
            blocks.append(list(repeated))
        blocks[-1].append(column)
    return blocks


def _format(columns: list[_Column], rows: Iterable[Mapping[str, Any] | str], width: int) -> str:
    widths = [column.whole for column in columns]
    if _total(widths) > width:
        widths = [column.titled for column in columns]
    _narrow(widths, width, [max(column.word, MIN_COLUMN) for column in columns])
    _narrow(widths, width, [MIN_COLUMN] * len(columns))
    cells = zip(*(column.cells for column in columns), strict=True)
    lines = (row if isinstance(row, str) else _row(next(cells), columns, widths) for row in rows)
    title = _row([column.title for column in columns], columns, widths)
    return "\n".join([title, (" " * GAP).join("-" * at for at in widths), *lines])


def _narrow(widths: list[int], width: int, least: list[int]) -> None:
    """Take from the widest column above its least width, until all fit or none is left."""
    while _total(widths) > width and (above := [i for i, at in enumerate(widths) if at > least[i]]):
        widths[max(above, key=widths.__getitem__)] -= 1


def _row(cells: Iterable[str], columns: list[_Column], widths: list[int]) -> str:
    """Return the lines of a row."""
    folded = [_folded(cell, at) for cell, at in zip(cells, widths, strict=True)]
    lines = []
    for parts in itertools.zip_longest(*folded, fillvalue=""):
        sides = zip(parts, columns, widths, strict=True)
        filled = (part.rjust(at) if column.align == "right" else part.ljust(at) for part, column, at in sides)
        lines.append((" " * GAP).join(filled).rstrip())
    return "\n".join(lines)


def _folded(text: str, width: int) -> list[str]:
    lines = (textwrap.wrap(line, width, break_on_hyphens=False) or [""] for line in text.splitlines())
    return [part for parts in lines for part in parts] or [""]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _total(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + GAP * (len(widths) - 1)
