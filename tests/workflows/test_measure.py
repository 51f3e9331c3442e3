"""measure.py and gate_pull_request.py: which commands they run, and what they do when one of them fails."""

import json
import re
import shutil
import subprocess
from datetime import date, timedelta

import click
import pytest

from perf.__main__ import main as perf
from perf.commands.missed import rows_of
from perf.selection import SETS
from perf.selection import shard as rows_of_shard
from tests.repositories import git
from tests.workflows.scripts import HOSTILE, ROOT, SCRIPTS, assert_refused, commit, run

STAND_IN = """
import json, pathlib, sys
arguments = [{name!r}, *sys.argv[1:]]
hashes = [pathlib.Path(one[9:]).read_text() for one in arguments if one.startswith("HASHFILE:")]
with open("called.jsonl", "a") as log:
    log.write(json.dumps([*[one for one in arguments if not one.startswith("HASHFILE:")], *hashes]) + "\\n")
printed, status = json.load(open("answers.json")).get(" ".join(arguments[:2]), ["", 0])
print(printed)
sys.exit(status)
"""
BASE, HEAD = "b" * 40, "c" * 40


class Machine:
    """A folder in which `python -m perf` and `python -m asv` are stand-ins."""

    def __init__(self, folder):
        self.folder = folder
        self.answers = {"perf select": ["rows", 0], "perf missed": ["", 0], "perf machine": ["nvidia-h200", 0]}
        for name in ("perf", "asv"):
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").touch()  # without it the real package would go first
            (folder / name / "__main__.py").write_text(STAND_IN.format(name=name))

    def run(self, script, *arguments, **environment):
        (self.folder / "answers.json").write_text(json.dumps(self.answers))
        return run(script, *arguments, cwd=self.folder, **environment)

    def called(self, *prefix):
        """Return the calls that begin so. Perf's own parser has accepted the options of each."""
        path = self.folder / "called.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for program, command, *arguments in calls:
            if program == "perf":
                perf.get_command(click.Context(perf), command).make_context(command, arguments)
        return [call for call in calls if call[: len(prefix)] == list(prefix)]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "main")


@pytest.mark.parametrize(("part", "name"), [("history", "history"), ("newest", "gpu")])
@pytest.mark.parametrize("status", [0, 2])
def test_commits_without_results_are_measured_and_the_status_is_that_of_asv(machine, part, name, status):
    machine.answers |= {"perf missed": [f"{HEAD}\n{BASE}", 0], "asv run": ["", status]}
    assert machine.run("measure", part).returncode == status
    assert machine.called("asv") == [["asv", "run", "-b", "rows", "--machine", "nvidia-h200", f"{HEAD}\n{BASE}\n"]]
    assert [call[2] for call in machine.called("perf") if call[1] != "machine"] == [name, name]


@pytest.mark.parametrize("part", ["history", "newest", "gate"])
def test_nothing_is_measured_where_nothing_is_due(machine, part):
    assert machine.run("measure", part).returncode == 0
    assert not machine.called("asv") + machine.called("perf", "gate")


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_changes_since_the_last_gate_are_gated_and_the_report_is_kept(machine, status):
    machine.answers |= {"perf missed": [f"{BASE} {HEAD}", 0], "perf gate": ["", status]}
    assert machine.run("measure", "gate", "--budget", "10").returncode == status
    ((*_, base, head, _, chosen, tests, keep, _, budget),) = machine.called("perf", "gate")
    assert (base, head, chosen, tests, keep, budget) == (BASE, HEAD, "pr", "--no-tests", "--keep", "10")


def test_the_self_test_has_some_of_the_rows(machine):
    assert machine.run("measure", "self-test", "--budget", "6").returncode == 0
    assert machine.called("perf", "self-test") == [["perf", "self-test", "-b", "rows", "--budget", "6"]]
    ((*_, name, _, part),) = machine.called("perf", "select")
    assert name == "pr" and re.fullmatch("[1-8]/8", part)


def test_a_week_of_nights_plants_every_regression(machine):
    assert machine.run("measure", "mutations", "--budget", "2").returncode == 0
    ((*_, commit, _, part, _, budget),) = machine.called("perf", "mutations")
    assert commit == "HEAD" and re.fullmatch("[1-7]/7", part) and budget == "2"


def test_eight_days_in_a_row_have_every_row(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import measure

    for first in (date(2026, 1, 5), date(2027, 12, 28)):
        parts = {measure.shard(first + timedelta(days=day)) for day in range(8)}
        assert parts == {f"{number}/8" for number in range(1, 9)}
    days = [rows_of(rows_of_shard(SETS["pr"], number, 8)) for number in range(1, 9)]
    assert all(days)
    assert {row for day in days for row in day} == set(rows_of(SETS["pr"]))


@pytest.mark.parametrize("part", ["history", "newest", "gate", "self-test"])
@pytest.mark.parametrize("answers", [{"perf select": ["", 1], "perf missed": ["", 1]}, {"perf select": ["", 0]}])
def test_without_a_selection_nothing_is_measured(machine, part, answers):
    """An empty pattern selects every benchmark."""
    machine.answers |= {"perf missed": [HEAD, 0]} | answers
    if part == "gate" and "perf missed" not in answers:
        pytest.skip("a gate selects no rows here")
    assert machine.run("measure", part).returncode == 1
    assert not machine.called("asv") + machine.called("perf", "gate") + machine.called("perf", "self-test")


@pytest.fixture
def pull(machine):
    """A pull request whose branch and message are hostile, main having gone on; the commands are stand-ins."""
    folder = machine.folder
    git(folder, "init", "-q", "-b", "main")
    machine.base = commit(folder, "Before")
    machine.head_checkout = folder.parent / "head"
    git(folder.parent, "clone", "-q", str(folder), str(machine.head_checkout))
    machine.commit = commit(machine.head_checkout, "\n".join(HOSTILE))
    commit(folder, "Main goes on")
    for name in ("gate", "machine-code"):
        machine.answers[f"perf {name}"] = ["::set-output name=changed::false", 1]
    return machine


def gate(pull, **changed):
    given = {"COMMIT": pull.commit, "SET": "pr", "MINUTES": "30"} | changed
    return pull.run("gate_pull_request", pull.head_checkout, pull.folder.parent / "report", **given)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_pull_request_is_gated_against_its_merge_base(pull, status):
    pull.answers["perf gate"][1] = status
    assert gate(pull).returncode == status
    ((*_, base, head, _, chosen, _, minutes, _, report),) = pull.called("perf", "gate")
    (on_a_cpu,) = pull.called("perf", "machine-code")
    assert (base, head, chosen, minutes) == (pull.base, pull.commit, "pr", "30")
    files = [str(pull.folder.parent / "report" / name) for name in ("report.json", "machine-code.json")]
    assert [report, on_a_cpu[-1]] == files
    assert on_a_cpu[2:6] == [base, head, "--set", "pr"]


def test_the_runner_takes_no_commands_from_the_output_of_a_pull_request(pull):
    lines = gate(pull).stdout.splitlines()
    token = re.fullmatch("::stop-commands::([0-9a-f]{64})", lines[0])[1]
    assert lines[1:] == [*["::set-output name=changed::false"] * 2, f"::{token}::"]
    assert token not in gate(pull).stdout


@pytest.mark.parametrize("text", [*HOSTILE, "c" * 40])
def test_another_commit_than_the_one_that_was_read_is_not_gated(pull, text):
    assert_refused(gate(pull, COMMIT=text), "", pull.folder.parent)
    assert not pull.called()


CI = """#!/bin/bash
echo "$(basename "$0") $*" >> "$CALLED"
[ "$(basename "$0")" != "$FAILS" ]
"""


@pytest.mark.parametrize("fails", ["", "pip", "ruff", "mypy", "pytest"])
def test_each_check_of_ci_can_turn_it_red(tmp_path, fails):
    """The script is real; the checks are stand-ins, `python3 -m venv` makes an environment without programs."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    programs = {name: CI for name in ("pip", "ruff", "mypy", "pytest", "chromedriver")}
    programs["python3"] = '#!/bin/bash\nmkdir -p "$3/bin"\necho > "$3/bin/activate"\n'
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLED": str(tmp_path / "called"), "FAILS": fails}
    done = subprocess.run(["bash", tmp_path / ".ci" / "run"], env=environment, check=False)
    called = [line.split()[0] for line in (tmp_path / "called").read_text().splitlines()]
    assert done.returncode == bool(fails)
    assert called == (["pip", "ruff", "ruff", "mypy", "pytest"] if not fails else called)
