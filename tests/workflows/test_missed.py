"""Which commits a runner still has to measure."""

import json
import subprocess
import sys

import pytest

from perf.missed import rows_of
from perf.selection import SETS
from tests.workflows.project import Project

ROW = "smoke.SmokeAttention.track_time"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("missed") / "project", sys.executable)
    commits = [project.commit(f"Code {number}", code=True) for number in (1, 2, 3)]
    project.commit("No code")
    return project, commits


def missed(project, *arguments, machine="m"):
    command = [sys.executable, "-m", "perf", "missed", "history", "--machine", machine, *arguments]
    done = subprocess.run(
        command, cwd=project.checkout, env=project.github.environment(), capture_output=True, text=True, check=False
    )
    return done.stdout.split() or done.stderr


def results(project, commit, rows):
    """Results of a commit: row -> version."""
    folder = project.checkout / "perf" / "results" / "m"
    folder.mkdir(parents=True, exist_ok=True)
    document = {"commit_hash": commit, "results": {name: [[1.0], [], version] for name, version in rows.items()}}
    (folder / f"{commit[:8]}-linked-py3.11.json").write_text(json.dumps(document))


def version():
    return rows_of(r"SmokeAttention\.track_time")[ROW]


def test_every_commit_with_code_is_due_newest_first(project):
    project, commits = project
    assert missed(project) == commits[::-1]
    assert missed(project, "--limit", "2") == commits[:0:-1]
    assert missed(project, "--last", "1") == commits[-1:]


CASES = {
    "measured": ({ROW: "now"}, False),
    "another row was measured": ({"controls.Controls.track_time": "now"}, True),
    "measured by another version": ({ROW: "older"}, True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_commit_is_due_until_it_has_the_rows_of_the_set(project, case):
    project, (first, middle, last) = project
    rows, due = CASES[case]
    results(project, middle, {name: version() if said == "now" else said for name, said in rows.items()})
    assert missed(project) == ([last, middle, first] if due else [last, first])
    assert missed(project, machine="another") == [last, middle, first]


def test_a_file_that_was_cut_in_half_is_named(project):
    project, (first, _, _) = project
    results(project, first, {})
    (path,) = (project.checkout / "perf" / "results" / "m").glob(f"{first[:8]}*")
    path.write_text('{"commit')
    try:
        assert "is cut in half: move it aside" in missed(project)
    finally:
        path.unlink()


def test_no_machine_file_is_one_line(project):
    project, _ = project
    file = project.github.home / ".asv-machine.json"
    kept = file.read_text()
    file.unlink()
    try:
        command = [sys.executable, "-m", "perf", "missed", "history"]
        environment = project.github.environment()
        done = subprocess.run(
            command, cwd=project.checkout, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        file.write_text(kept)
    assert done.returncode == 1
    assert "`python -m perf machine` writes it" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_rows_of_the_sets_are_those_that_asv_finds():
    history = rows_of(SETS["history"])
    assert set(history) == {
        "attention.FlashAttention.track_peak_memory",
        "attention.FlashAttention.track_time",
        "controls.Controls.track_time",
    }
    assert set(history.items()) < set(rows_of(SETS["gpu"]).items())
