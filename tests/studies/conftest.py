import gc
from pathlib import Path

import pytest

from perf.studies import document, figures


@pytest.fixture(autouse=True)
def studies_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a study leaves its rows and figures unless it is told a place: two tests share none."""
    folder = tmp_path / "studies"
    monkeypatch.setattr(document, "FOLDER", folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def little_to_collect():
    """Studies collect all garbage before they measure: not over half a second of what other tests have left."""
    gc.freeze()


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, in order."""
    found = []
    save = figures.save

    def save_and_keep(figure, *others):
        save(figure, *others)
        found.append(figure)

    monkeypatch.setattr(figures, "save", save_and_keep)
    return found
