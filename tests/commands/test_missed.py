"""`perf missed` lists the commits that a runner still has to measure."""

import json
import shutil
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from perf.benchmarks.smoke import SmokeAttention
from perf.commands import missed as missed_module
from perf.commands.missed import rows_of
from perf.gate.report import to_json
from perf.harness.journal import Journal
from perf.harness.suite import cases_of
from perf.machines import MACHINE_FILE
from perf.selection import SETS
from tests.gate.reports import report, verdict
from tests.throwaway import Repository


def code(project, number):
    """Commit other code."""
    project.write_package(axis=str(number))
    return project.commit(f"Code {number}")


def no_code(project):
    with (project.folder / "notes.txt").open("a") as notes:
        notes.write("more\n")
    return project.commit("No code")


ROW = "smoke.SmokeAttention.track_time"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Repository(tmp_path_factory.mktemp("missed") / "project")
    commits = [code(project, number) for number in (1, 2, 3)]
    no_code(project)
    return project, commits


def missed(project, *arguments, machine="m"):
    printed = missed_of(project, "history", "--machine", machine, *arguments)
    return printed if printed.startswith("Error: ") else printed.split()


def missed_of(project, *arguments):
    """The command's output, or its error if it ends with one."""
    folder = project.folder
    with (
        patch.multiple(missed_module, ROOT=folder, RECORDS=folder / "perf" / "records"),
        patch.dict(SETS, history=r"SmokeAttention\.track_time"),
    ):
        done = CliRunner().invoke(missed_module.command, arguments)
    assert bool(done.stderr) is (done.exit_code != 0), done.output
    return done.stderr or done.stdout


def results(project, commit, rows):
    """Results of a commit: row -> version."""
    folder = project.folder / "perf" / "results" / "m"
    folder.mkdir(parents=True, exist_ok=True)
    document = {"commit_hash": commit, "env_name": "linked-py3.11", "date": 0, "version": 2, "python": "3.11"}
    document |= {"params": {}, "requirements": {}, "result_columns": ["result", "params", "version"]}
    document |= {"results": {name: [[1.0], [], version] for name, version in rows.items()}}
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


SESSION = dict.fromkeys(("started_at", "day", "harness", "effort", "machine", "commit"), "")


@pytest.mark.parametrize("case", CASES)
def test_a_commit_is_due_until_it_has_the_rows_of_the_set(project, case):
    project, (first, middle, last) = project
    rows, due = CASES[case]
    results(project, middle, {name: version() if value == "now" else value for name, value in rows.items()})
    assert missed(project) == ([last, middle, first] if due else [last, first])
    assert missed(project, machine="another") == [last, middle, first]


def test_a_commit_is_due_that_lacks_a_case_of_a_class_that_was_visited(project):
    project, (*_, last) = project
    results(project, last, {ROW: version()})
    of_machine = project.folder / "perf" / "records" / "m"
    one, *others = cases_of(SmokeAttention())
    due = []
    for cases in (others, [one]):
        journal = Journal(of_machine.parent, of_machine.name, last)
        journal.write({"kind": "session", "id": "s", "device": {}, "software": {}} | SESSION)
        for case in cases:
            visit = {"kind": "visit", "session": "s", "benchmark": case.benchmark, "params": case.params}
            journal.write(visit | {"visit": 0, "status": "ok", "reason": "", "cache": "warm"})
        journal.close()
        due.append(last in missed(project))
    shutil.rmtree(of_machine)
    (project.folder / "perf" / "results" / "m" / f"{last[:8]}-linked-py3.11.json").unlink()
    assert due == [True, False]


def test_a_file_that_was_cut_in_half_is_named(project):
    project, (first, _, _) = project
    results(project, first, {})
    (path,) = (project.folder / "perf" / "results" / "m").glob(f"{first[:8]}*")
    path.write_text('{"commit')
    try:
        assert str(path) in missed(project)
    finally:
        path.unlink()


def test_no_machine_file_is_one_line(project, tmp_path, monkeypatch):
    monkeypatch.setenv(MACHINE_FILE, str(tmp_path / "none.json"))
    (line,) = missed_of(project[0], "history").splitlines()
    assert "none.json" in line and "perf machine" in line


def test_the_rows_of_the_sets_are_those_that_asv_finds():
    history = rows_of(SETS["history"])
    assert set(history) == {
        "attention.FlashAttention.track_peak_memory",
        "attention.FlashAttention.track_time",
        "controls.Controls.track_time",
    }
    assert set(history.items()) < set(rows_of(SETS["gpu"]).items())


def gate_due(project, *arguments):
    return missed_of(project, "--gate", "--machine", "m", *arguments)


def keep(project, head, *, at=1, base="b" * 40, word="SAME", **changes):
    """A report of a gate that judged `head`, which has a verdict of this word. Returns the file."""
    arms = {"base": {"commit": base, "subject": "x"}, "head": {"commit": head, "subject": "x"}}
    path = project.folder / "perf" / "records" / "m" / "gate" / f"2026110{at}T000000Z.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(report(verdict(word), **arms, **changes)))
    return path


@pytest.fixture
def kept(project):
    """The project without kept gates, before and after."""
    folder = project[0].folder / "perf" / "records"
    yield project
    shutil.rmtree(folder, ignore_errors=True)


def test_without_a_kept_gate_the_newest_code_is_held_against_the_code_before(kept):
    project, (_, middle, last) = kept
    assert gate_due(project) == f"{middle} {last}\n"
    keep(project, last)
    assert missed_of(project, "--gate", "--machine", "another") == f"{middle} {last}\n"


def test_a_gate_covers_everything_since_the_last_one_and_none_is_due_twice(kept):
    project, (first, _, last) = kept
    keep(project, first)
    assert gate_due(project) == f"{first} {last}\n"
    keep(project, last, at=2, word="SLOWER")
    assert gate_due(project) == ""
    keep(project, first, at=3)  # of an older range, by hand: it takes nothing back
    assert gate_due(project) == ""
    keep(project, project.git("rev-parse", "HEAD"), at=4)  # it touches no code
    assert gate_due(project) == ""


UNJUDGED = {
    "nothing judged": {"word": "AMBIGUOUS"},
    "controls that moved": {"contaminated": "copy moved by 4 %"},
    "red tests": {"tests_passed": False},
    "no commit of main": {"head": "f" * 40},
    "a working tree": {"head": "working tree"},
}


@pytest.mark.parametrize("case", UNJUDGED)
def test_a_gate_that_says_nothing_of_main_is_made_up_for(kept, case):
    project, (first, _, last) = kept
    keep(project, first)
    keep(project, **{"head": last, "at": 2} | UNJUDGED[case])
    keep(project, last, at=3, base=last)  # against itself
    assert gate_due(project) == f"{first} {last}\n"


@pytest.mark.parametrize("text", ['{"exit_sta', "[]", "{}", '{"exit_status": 0}', '"\\ud800"'])
def test_a_kept_gate_that_cannot_be_read_is_one_line(kept, text):
    project, (first, _, _) = kept
    keep(project, first).write_text(text)
    (line,) = gate_due(project).splitlines()
    assert "20261101T000000Z.json" in line


def test_what_was_accepted_since_goes_into_the_gate(tmp_path):
    project = Repository(tmp_path / "project")
    first, _ = code(project, 1), code(project, 2)
    (project.folder / "perf" / "accepted.json").write_text("[]")
    acceptance = project.commit("An acceptance")
    no_code(project)
    assert gate_due(project) == f"{first} {acceptance}\n"
    keep(project, acceptance)
    (project.folder / "perf" / "accepted.json").write_text("[ ]")
    project.commit("An acceptance alone is no code")
    assert gate_due(project) == ""


def test_one_commit_alone_has_nothing_to_be_held_against(tmp_path):
    project = Repository(tmp_path / "project")
    code(project, 1)
    no_code(project)
    assert gate_due(project) == ""


@pytest.mark.parametrize("arguments", [[], ["history", "--gate"]])
def test_a_set_or_the_gate_is_asked_for(project, arguments):
    assert "NAME, or --gate" in missed_of(project[0], *arguments)
