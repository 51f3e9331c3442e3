"""Pieces of the document: tables, and text from rows that cannot become markup."""

import re
import textwrap
from collections.abc import Collection, Iterable
from typing import Any

from perf.printable import collapsed

TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
_LINK = re.compile(r"(?<![!\\])\[([^\]]+)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>&|~$#@^!]|:(?=//)|(?<=www)\.", re.I)
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?![\w.,])|-?$")
_LONGEST = 300


class Markup(str):
    """A cell that is Markdown of ours already."""


def plain(value: Any) -> str:
    """Text of a row, as text: on one line, of bounded length, and none of it markup, a link or a piece of HTML."""
    words = textwrap.shorten(collapsed(str(value)), _LONGEST, placeholder=" ...")
    return _SPECIAL.sub(lambda found: "\\" + found[0], words)


def code(text: Any) -> Markup:
    """A command or a path of a row, as code; what would end the code is left out."""
    return Markup(f"`{' '.join(str(text).replace('`', '').split())}`")


def table(rows: Iterable[dict[str, Any]], words: Collection[str] = ()) -> str:
    """A table of GitHub's Markdown, columns of numbers to the right; a cell that a row lacks stays empty.

    `words` are columns whose cells may begin with a number and are none.
    """
    listed = list(rows)
    names = list(dict.fromkeys(name for row in listed for name in row))
    lines = [[_cell(row.get(name, "")) for name in names] for row in listed]
    numbers = [
        name not in words and all(_NUMBER.match(cell.strip("*")) for cell in column)
        for name, column in zip(names, zip(*lines, strict=True), strict=True)
    ]
    rule = ["---:" if one else "---" for one in numbers]
    return "".join(f"| {' | '.join(line)} |\n" for line in [[_cell(name) for name in names], rule, *lines])


def _cell(value: Any) -> str:
    return value if isinstance(value, Markup) else plain(value)


def anchored(text: str) -> str:
    """Links to places that are not in `text` become their words: its forms have no other page to lead to."""
    prose = _FENCED.sub("", text)
    known = {"#" + anchor(words) for words in re.findall(r"^#+ (.+)$", prose, re.M)}

    def kept(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target in known or target.startswith("https://"):
            return match[0]
        return words if target.startswith("#") or words.startswith("`") else f"`{words}`" if "." in words else words

    return _LINK.sub(kept, text)


def anchor(heading: str) -> str:
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower()


def tables_alone(text: str) -> str:
    """Headings and their tables, without links: the part of the document that goes into somebody's own."""
    found, heading = [], ""
    for part in re.split(r"(^#+ .+\n)", _LINK.sub(r"\1", _FENCED.sub("", text)), flags=re.M):
        if part.startswith("#"):
            heading = part
        elif tables := TABLE.findall(part):
            found += [heading, *tables]
    return "\n".join(found)
