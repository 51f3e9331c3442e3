"""Measured rows by their setting, as the tables and sentences of the answers read them."""

from collections.abc import Iterable
from typing import Any

from perf.studies.on_file import NotOnFile, OnFile
from perf.studies.rows import Row

Documents = dict[str, dict[str, Any]]

SIZES = ("small", "medium", "large", "xl", "2.7B")
CONTEXTS = (128, 256, 512, 1024)
DIMS = (16, 32, 64, 128)
BATCH = 4


def by(rows: Iterable[Row], *axes: str) -> dict[Any, Row]:
    """Measured rows by the values of these axes. Raises `NotOnFile` where two rows have the same values."""
    selected: dict[Any, Row] = OnFile()
    for row in rows:
        if row.get("status", "ok") == "ok":
            key = tuple(row[axis] for axis in axes)
            if key in selected:
                raise NotOnFile(f"two rows have {key}; allowed: one for each {axes}")
            selected[key] = row
    return selected


class Answer:
    """Base of the figures of one topic: computes them from the documents of one machine, when a template asks."""

    def __init__(self, documents: Documents) -> None:
        """Keep the documents; a missing one raises `NotOnFile` where it is first needed."""
        self.documents = documents
