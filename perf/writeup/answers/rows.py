"""Measured rows by their setting, as the tables and sentences of the answers read them."""

from collections.abc import Iterable
from typing import Any

from perf.studies.on_file import NotOnFile, OnFile
from perf.studies.rows import Row
from perf.workloads import measured
from perf.workloads.closed_forms import config_of

Documents = dict[str, dict[str, Any]]

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


AXES = {
    "end-to-end": ("size", "context", "precision"),
    "kernels": ("size", "context"),
    "compile-attention": ("seq_len", "d", "variant"),
    "compile-model": ("size", "variant"),
}
"""What tells the rows of a study apart."""


def settings(documents: Documents, study: str) -> dict[Any, Row]:
    """Measured rows of a study by their setting; see `by`."""
    return by(documents[study]["rows"], *AXES[study])


def accounted(form: str, size: str, *arguments: Any, **options: Any) -> Any:
    """Apply a closed form of `cs336_systems.accounting`, such as "peak.peak_step_bytes", to a model."""
    module, _, name = form.partition(".")
    return measured(f"accounting.{module}", name)(config_of(size), *arguments, **options)


class Answer:
    """Base of the figures of one topic: computes them from the documents of one machine, when a template asks."""

    def __init__(self, documents: Documents) -> None:
        """Keep the documents; a missing one raises `NotOnFile` where it is first needed."""
        self.documents = documents
