from pathlib import Path

import pytest

from perf.studies import document


@pytest.fixture(autouse=True)
def studies_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a study leaves its rows and figures unless it is told a place: two tests share none."""
    folder = tmp_path / "studies"
    monkeypatch.setattr(document, "FOLDER", folder)
    return folder
