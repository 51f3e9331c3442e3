"""Documents of studies as they are on file: what they lack is an answer of its own, no error of whoever asks."""

import json
from pathlib import Path
from typing import Any

from perf.harness import status
from perf.studies.rows import faults


class NotOnFile(LookupError):
    """Raised for a quantity that was not measured or that its file lacks; the message names it."""


class OnFile(dict[Any, Any]):
    """Rows, documents and tables of them by key. Raises `NotOnFile` for a key that is missing."""

    def __missing__(self, key: Any) -> Any:
        raise NotOnFile(f"{key!r} is not on file")

    def __or__(self, other: Any) -> "OnFile":
        return OnFile({**self, **other})


def loaded(path: Path) -> Any:
    """Return a document from its file, however old: each row has a `Status`.

    Raises `OSError`, and `ValueError` for what is no JSON or has fields of another type than the study writes.
    """
    found = json.loads(path.read_text(encoding="utf-8"), object_hook=OnFile)
    if isinstance(found, dict) and isinstance(found.get("rows"), list):
        found["rows"] = [status.read(row) if isinstance(row, dict) else row for row in found["rows"]]
        known = [row for row in found["rows"] if isinstance(row, dict)]
        if wrong := next(faults(path.stem, known, whole=False), None):
            raise ValueError(wrong)
    return found


def some(rows: list[Any], what: str) -> list[Any]:
    """`rows`, of which there is at least one. Raises `NotOnFile` if there is none of `what`."""
    if not rows:
        raise NotOnFile(f"{what}: no row is on file")
    return rows
