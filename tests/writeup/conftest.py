"""What is on file of the committed machine, and the write-up of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest

from perf.studies.on_file import loaded
from perf.writeup import document, source
from tests.once import Once

PERF = Path(__file__).parents[2] / "perf"
READ: dict[tuple[str, bytes], Any] = {}
"""Documents by their names and contents: 7 MB, of which most tests have a copy or two."""


@pytest.fixture(autouse=True)
def _each_content_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> Any:
        key = path.name, path.read_bytes()
        if key not in READ:
            READ[key] = loaded(path)
        return READ[key]

    monkeypatch.setattr(source, "loaded", load)


@pytest.fixture(scope="module")
def committed_source(committed_results: pandas.DataFrame) -> source.Source:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "load", lambda _: committed_results)
        return source.read(PERF, "nvidia-h200")


@pytest.fixture(scope="module")
def committed(once: Once, committed_source: source.Source) -> SimpleNamespace:
    """The `document`, and the `folder` in which its figures are."""

    def write(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(document=document.write(committed_source, folder), folder=folder)

    return once("committed-write-up", write)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty figures: to draw them takes longer than all the rest."""

    def save(_figure: object, path: Path, _title: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    monkeypatch.setattr("perf.studies.figures.save", save)
