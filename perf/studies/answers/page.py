"""A folder's README whose tables are what the rows beside it say.

In the README `<!-- table: NAME -->` stands above a table of `tables.TABLES`, and `<!-- command: FILE -->` above
the line that says how FILE's rows were measured. What follows such a mark, up to the next empty line, is ours.
"""

import json
import re
from pathlib import Path
from typing import Any

from perf.studies.answers.tables import TABLES, Documents
from perf.studies.document import heading

FOLDER = Path(__file__).parents[1] / "results" / "nvidia-h200"
MARK = re.compile(r"(?<=<!-- )(table|command): ([\w.-]+) -->\n(?:.+\n)*")


def documents(folder: Path) -> Documents:
    """The documents of a folder by their names: "end-to-end" is end-to-end.json."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def command_line(name: str, document: dict[str, Any]) -> str:
    """How the rows of NAME.json were measured."""
    return f"Measured with `{document['command']}`; rows in [{name}.json]({name}.json).\n"


def rewritten(text: str, found: Documents) -> str:
    """`text` with all that is marked in it made anew. Raises `ValueError` for a mark that names nothing."""

    def made(match: re.Match[str]) -> str:
        kind, name = match.groups()
        known: dict[str, Any] = TABLES if kind == "table" else found
        if name not in known:
            raise ValueError(f"{kind} {name!r} was given; allowed: {', '.join(sorted(known))}")
        body = TABLES[name](found) if kind == "table" else command_line(name, found[name])
        return f"{kind}: {name} -->\n{body}"

    return MARK.sub(made, text)


def headings(found: Documents) -> set[str]:
    """Device and software of every document."""
    return {heading(document) for document in found.values()}
