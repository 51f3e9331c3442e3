"""What the tables of the answers share: rows by their setting, and Markdown."""

import re
from collections.abc import Iterable
from typing import Any

from perf.studies.on_file import OnFile, some
from perf.studies.rows import Row
from perf.units import GIB, MIB, digits

Documents = dict[str, dict[str, Any]]

SIZES = ("small", "medium", "large", "xl", "2.7B")
CONTEXTS = (128, 256, 512, 1024)
BATCH = 4


def markdown(rows: Iterable[Row]) -> str:
    """A table of GitHub's Markdown; the columns are the keys of the first row, those of numbers to the right."""
    rows = some(list(rows), "table")
    names = list(rows[0])
    lines = [names, ["---:" if re.match(r"(\*\*)?[-+\d]", str(rows[0][name])) else "---" for name in names]]
    lines += [[str(row.get(name, "")) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def by(rows: Iterable[Row], *axes: str) -> dict[Any, Row]:
    """The measured rows by the values of these axes, of which no two rows may have the same."""
    found: dict[Any, Row] = OnFile()
    for row in rows:
        if row["status"] == "ok":
            key = tuple(row[axis] for axis in axes)
            if key in found:
                raise ValueError(f"two rows have {key}; allowed: one for each {axes}")
            found[key] = row
    return found


def ms(seconds: float, decimals: int = 2) -> str:
    """Milliseconds without their unit."""
    return f"{seconds * 1e3:.{decimals}f}"


def three(seconds: float) -> str:
    """Milliseconds with three significant digits."""
    return digits(seconds * 1e3)


def gib(value: float) -> str:
    """GiB without their unit."""
    return f"{value / GIB:.2f}"


def mib(value: float) -> str:
    """MiB without their unit, and without needless decimals."""
    return f"{value / MIB:.2f}".rstrip("0").rstrip(".")


def percent(fraction: float) -> str:
    """With a sign, for a change."""
    return f"{fraction:+.1%}".replace("%", " %")


def share(fraction: float) -> str:
    """Without a sign."""
    return f"{fraction:.1%}".replace("%", " %")


def gain(before: float, after: float) -> str:
    """How many times as fast."""
    return f"{before / after:.2f}\u00d7"
