from pathlib import Path

import pytest

from tests.throwaway import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """One commit, tagged base."""
    made = Repository(tmp_path / "repo")
    made.write_package(axis="[1]")
    made.commit("base")
    made.git("tag", "base")
    return made
