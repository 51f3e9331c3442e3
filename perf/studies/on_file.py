"""Read the studies' documents from file. Missing data raise `NotOnFile`, which a reader can report."""

import json
from pathlib import Path
from typing import Any

from perf.harness import status
from perf.studies.row_forms import faults


class NotOnFile(LookupError):
    """Raised for a quantity that was not measured or that its file lacks; the message names it."""


class OnFile(dict[Any, Any]):
    """Rows, documents and tables of them by key. Raises `NotOnFile` for a key that is missing."""

    def __missing__(self, key: Any) -> Any:
        raise NotOnFile(f"{key!r} is not on file")

    def __or__(self, other: Any) -> "OnFile":
        return OnFile({**self, **other})


def loaded(path: Path) -> Any:
    """Return a document from its file. Rows of older files get a `Status`.

    Raises `OSError`, and `ValueError` for invalid JSON or a field of another type than the study writes.
    """
    document = json.loads(path.read_text(encoding="utf-8"), object_hook=OnFile)
    if isinstance(document, dict) and isinstance(document.get("rows"), list):
        document["rows"] = [status.read(row) if isinstance(row, dict) else row for row in document["rows"]]
        known = [row for row in document["rows"] if isinstance(row, dict)]
        if wrong := next(faults(path.stem, known, whole=False), None):
            raise ValueError(wrong)
    return document


def some(rows: list[Any], what: str) -> list[Any]:
    """Return `rows`. Raises `NotOnFile`, naming `what`, if there are none."""
    if not rows:
        raise NotOnFile(f"{what}: no row is on file")
    return rows
