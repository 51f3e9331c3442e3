"""asv's commands beside `asv run` measure what they are given, and keep nothing that asv does not save."""

import copy
import shutil

import pytest

from tests.asv_plugins.test_linked_environment import measure_commits
from tests.throwaway import MACHINE

ROW = r"smoke.SmokeControls.track_time\('copy'\)"


@pytest.fixture
def measured(once, tmp_path):
    """A copy of the repository in which asv has measured, and its commits by message."""
    original, by_message, _ = once("linked-environment", measure_commits)
    repository = copy.copy(original)
    repository.folder = tmp_path / "copy"
    shutil.copytree(original.folder, repository.folder, symlinks=True, ignore=shutil.ignore_patterns(".asv"))
    return repository, by_message


def records_of(repository):
    return {path: path.read_bytes() for path in (repository.folder / "perf" / "records").rglob("*.gz")}


@pytest.mark.parametrize("arguments", [("find", "HEAD", ROW, "--skip-save", "--machine", MACHINE), ("profile", ROW)])
def test_a_command_that_saves_no_results_leaves_no_records_and_measures_its_row_alone(measured, arguments):
    repository, _ = measured
    before = records_of(repository)
    done = repository.asv(*arguments, "-v")
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "SmokeControls('copy')" in printed and "SmokeControls('matmul')" not in printed
    assert records_of(repository) == before
