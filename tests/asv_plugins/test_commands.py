"""asv's commands end in one line where asv itself has a traceback, and keep results under a commit's name alone."""

import copy
import shutil
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from perf.asv_plugins import commands
from perf.harness import records
from tests.asv_plugins.test_linked_environment import COMMITS, measure_commits
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


def results_of(repository):
    return sorted((repository.folder / "perf" / "results").glob("*/*-*.json"))


def records_of(repository):
    return {path: path.read_bytes() for path in (repository.folder / "perf" / "records").rglob("*.gz")}


@pytest.mark.parametrize(("status", "said", "arguments"), [
    (1, "bad revision 'nope..HEAD'", ("find", "nope..HEAD", ROW, "--machine", MACHINE)),
    (1, "'(x' was given", ("run", "HEAD^!", "-b", "(x", "--machine", MACHINE)),
    (1, "allowed: linked", ("run", "--python=same", "-b", ROW, "--machine", MACHINE)),
    (1, "allowed: linked", ("run", "-E", "existing", "--set-commit-hash", "HEAD", "-b", ROW, "--machine", MACHINE)),
    (1, "allowed: linked", ("find", "HEAD~2..HEAD", ROW, "--python=same", "--machine", MACHINE)),
    (1, "allowed: linked", ("profile", ROW, "--python=same")),
    (1, "port 99999 was given", ("preview", "-p", "99999", "--html-dir", ".")),
    (1, "asv publish", ("preview", "--html-dir", "nowhere")),
    (0, "0 files", ("rm", "-y", "python=2.7")),
    (0, "0 files", ("rm", "-y", "no_such_parameter=1")),
    (0, "", ("setup",)),
    (0, "No problems", ("check", "-E", "existing")),
])  # fmt: skip
def test_a_command_ends_in_a_line_and_leaves_the_results_alone(measured, status, said, arguments):
    repository, _ = measured
    before = results_of(repository)
    done = repository.asv(*arguments)
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed and " object at 0x" not in printed
    assert (done.returncode, said in printed) == (status, True), printed
    assert results_of(repository) == before


@pytest.mark.parametrize("arguments", [
    pytest.param(("find", "HEAD", ROW, "--skip-save", "--machine", MACHINE), marks=pytest.mark.slow),
    ("profile", ROW),
])  # fmt: skip
def test_a_command_that_saves_no_results_leaves_no_records_and_measures_its_row_alone(measured, arguments):
    repository, _ = measured
    before = records_of(repository)
    done = repository.asv(*arguments, "-v")
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "SmokeControls('copy')" in printed and "SmokeControls('matmul')" not in printed
    assert records_of(repository) == before


def test_tags_are_measured_as_their_commits(measured):
    repository, by_message = measured
    newest = by_message[COMMITS[-1]]
    repository.git("tag", "v1.0", newest)
    repository.git("tag", "-a", "-m", "the same", "release/1", newest)
    run = repository.asv("run", "TAGS", "--quick", "--machine", MACHINE, "-b", ROW)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 commits" in run.stdout
    assert "smoke.SmokeControls.track_time" in repository.result(newest)["results"]
    folder = repository.folder / "perf" / "records"
    (machine,) = records.machines(folder)
    assert set(records.commits(folder, machine)) <= set(by_message.values())


def test_a_port_in_use_is_named(tmp_path):
    class Preview:
        @classmethod
        def run(cls, conf: Any, port: int) -> None:
            with socket.socket() as second:
                second.bind(("127.0.0.1", port))

    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(commands.UserError, match=f"port {port} was given"):
            commands._naming_the_port(Preview.run).__func__(Preview, SimpleNamespace(html_dir=str(tmp_path)), port)
