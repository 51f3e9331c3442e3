"""The list of problems: its points, its tests and its commands are real."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

from perf.report.writeup import source
from perf.report.writeup.problems import POINTS, PROBLEMS, Need
from perf.selection import asv_classes
from perf.studies import Studies
from tests.report.writeup.made_up import DDP, MACHINE, ddp_row, perf_folder

TESTS = Path(__file__).parents[2]
COMMANDS = sorted({need.command(MACHINE) for problem in PROBLEMS for need in problem.needs})


def test_the_points_are_those_of_the_handout():
    assert sum(problem.points for problem in PROBLEMS) == POINTS == 107
    assert len({problem.name for problem in PROBLEMS}) == len(PROBLEMS)


@pytest.mark.parametrize("name", sorted({name for problem in PROBLEMS for name in problem.tests}))
def test_the_tests_that_hold_a_problem_exist(name):
    path, _, function = name.partition("::")
    found = {node.name for node in ast.parse((TESTS / path).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert function in found if function else any(one.startswith("test_") for one in found)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_of_a_missing_measurement_is_one_that_runs(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # parsing --out makes the folder
    words = shlex.split(command)
    if words[0] == "asv":
        assert words[:3] == ["asv", "run", "-b"]
        assert len([name for name, _, _ in asv_classes() if re.search(words[3], f"{name}.track_time")]) == 1
        return
    assert words[:4] == ["python", "-m", "perf", "study"]
    study = Studies("study").get_command(click.Context(click.Command("study")), words[4])
    assert study is not None, words[4]
    context = study.make_context(words[4], words[5:])
    assert context.params["out"].parent == Path("perf/studies/results")


def test_a_problem_has_one_command_for_each_document():
    """A study replaces its document: two commands for one would undo each other."""
    by_document: dict[tuple[str, str], set[str]] = {}
    for problem in PROBLEMS:
        for need in problem.needs:
            place = (need.document or need.study, need.command(MACHINE).rpartition(" ")[2])
            by_document.setdefault(place, set()).add(need.command(MACHINE))
    assert {place: commands for place, commands in by_document.items() if len(commands) > 1} == {}


def missing(tmp_path, rows, *asked):
    need = Need("ddp", asked=asked)
    return need.missing(source.read(perf_folder(tmp_path, {"ddp": rows}), MACHINE))


def test_what_no_row_has_is_missing(tmp_path):
    naive, absent = {"strategy": "naive", "world_size": 2}, {"strategy": "naive", "world_size": 4}
    assert missing(tmp_path, DDP, naive, absent) == [absent]


def test_a_row_that_failed_is_no_measurement_but_one_that_did_not_fit_is(tmp_path):
    asked = {"strategy": "flat"}
    assert missing(tmp_path, [ddp_row("flat") | {"status": "RuntimeError: no"}], asked) == [asked]
    assert missing(tmp_path, [ddp_row("flat") | {"status": "out_of_memory"}], asked) == []


def test_results_of_more_gpus_lie_beside_those_of_one():
    need = Need("ddp", "--size xl", ranks=2)
    assert (
        need.command("box")
        == need.command("box-x4")
        == ("python -m perf study ddp --size xl --out perf/studies/results/box-x2")
    )
