"""Read the gate's documents on file for the pages."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from perf.gate.report import Unreadable
from perf.printable import printable

Document = TypeVar("Document")


def read_folder(folder: Path, read: Callable[[Path], Document]) -> tuple[list[Document], list[tuple[str, str]]]:
    """Return documents in order of their names, and name and reason of each that raises `Unreadable`.

    An unreadable file is a warning in the terminal, too.
    """
    found, skipped = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read(path))
        except Unreadable as error:
            skipped.append((path.name, str(error)))
            _warn(path, str(error))
    return found, skipped


@functools.cache  # several pages read the same folder
def _warn(path: Path, reason: str) -> None:
    from asv.console import log

    log.warning(printable(f"{path} is left out: {reason}"))
