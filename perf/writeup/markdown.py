"""Pieces of the document: tables, text from rows that can become no markup, and parts cut from a README."""

import re
import textwrap
from collections.abc import Iterable
from typing import Any

from perf.printable import collapsed

TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_MARK = re.compile(r"^<!-- .* -->\n", re.M)
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


def code(text: Any) -> str:
    """A command or a path of a row, as code; what would end the code is left out."""
    return f"`{' '.join(str(text).replace('`', '').split())}`"


def table(rows: Iterable[dict[str, Any]]) -> str:
    """A table of GitHub's Markdown, columns of numbers to the right; a cell that a row lacks stays empty."""
    import pandas

    frame = pandas.DataFrame(list(rows), dtype=object).fillna("")
    cells = frame.map(lambda cell: cell if isinstance(cell, Markup) else plain(cell))
    numbers = [all(_NUMBER.match(cell) for cell in cells[name]) for name in cells]
    return (
        cells.to_markdown(
            index=False,
            tablefmt="pipe",
            disable_numparse=True,
            headers=[plain(name) for name in cells],
            colalign=["right" if one else "left" for one in numbers],
        )
        + "\n"
    )


def section(text: str, heading: str) -> str:
    """What stands under `## heading`, up to the next of its kind. Raises `KeyError` where there is none."""
    parts = re.split(r"^## (.+)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading].strip() + "\n"


def unmarked(text: str) -> str:
    """Without the marks over the tables of a README."""
    return _MARK.sub("", text)


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
