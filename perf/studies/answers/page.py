"""A folder's README whose tables are what the rows beside it say; README.md shows some of FOLDER's too.

In a README `<!-- table: NAME -->` stands above one of `tables.TABLES`, in README.md above one of
`attention.FRONT_TABLES`, and `<!-- command: FILE -->` above the line that says how FILE's rows were measured. What
follows such a mark, up to the next empty line, is ours.
"""

import re
from pathlib import Path
from typing import Any

from perf.studies.answers.attention import FRONT_TABLES
from perf.studies.answers.tables import TABLES, Documents
from perf.studies.document import heading
from perf.studies.on_file import NotOnFile, OnFile, loaded

FOLDER = Path(__file__).parents[1] / "results" / "nvidia-h200"
FRONT = tuple(Path(__file__).parents[3] / name for name in ("README.md", "README.zh.md"))
MARK = re.compile(r"(?<=<!-- )(table|command): ([\w.-]+) -->\n(?:.+\n)*")


def documents(folder: Path) -> Documents:
    """The documents of a folder by their names: "end-to-end" is end-to-end.json."""
    return OnFile({path.stem: loaded(path) for path in sorted(folder.glob("*.json"))})


def readmes(folder: Path) -> tuple[Path, ...]:
    """Those with tables of a folder's rows."""
    return (folder / "README.md", *(FRONT if folder == FOLDER else ()))


def command_line(name: str, document: dict[str, Any]) -> str:
    """How the rows of NAME.json were measured."""
    commit = f" at commit `{document['commit']}`" if document.get("commit") else ""
    return f"Measured with `{document['command']}`{commit}; rows in [{name}.json]({name}.json).\n"


def rewritten(text: str, found: Documents) -> str:
    """`text` with all that is marked in it made anew.

    Raises `ValueError` for an unknown table and `NotOnFile` for unknown rows.
    """
    tables = TABLES | FRONT_TABLES

    def made(match: re.Match[str]) -> str:
        kind, name = match.groups()
        known: dict[str, Any] = tables if kind == "table" else found
        if name not in known:
            fault = ValueError if kind == "table" else NotOnFile
            raise fault(f"{kind} {name!r} was given; allowed: {', '.join(sorted(known))}")
        body = tables[name](found) if kind == "table" else command_line(name, found[name])
        return f"{kind}: {name} -->\n{body}"

    return MARK.sub(made, text)


def headings(found: Documents) -> set[str]:
    """Device and software of every document."""
    return {heading(document) for document in found.values()}
