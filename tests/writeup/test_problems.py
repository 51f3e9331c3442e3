"""The list of problems: its points, its tests and its commands are real."""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
import torch

from perf.selection import asv_classes
from perf.studies import command as studies
from perf.studies import lm
from perf.studies.on_file import NotOnFile
from perf.workloads.workload import WrongResult
from perf.writeup import source
from perf.writeup.answers.attention import Beside
from perf.writeup.answers.memory import memory_peaks
from perf.writeup.answers.steps import WarmUp
from perf.writeup.answers.train_step import TrainStep
from perf.writeup.editions import EDITIONS
from perf.writeup.problems import Need
from tests.writeup.made_up import DDP, MACHINE, ddp_row, perf_folder

TESTS = Path(__file__).parents[1]
PROBLEMS = [problem for edition in EDITIONS.values() for problem in edition.problems]
COMMANDS = sorted({need.command(MACHINE) for problem in PROBLEMS for need in problem.needs})


def test_the_points_are_those_of_the_handout():
    assert {year: edition.points for year, edition in EDITIONS.items()} == {"2025": 107, "2026": 137}
    assert {year: len(edition.problems) for year, edition in EDITIONS.items()} == {"2025": 22, "2026": 27}
    for edition in EDITIONS.values():
        assert len({problem.name for problem in edition.problems}) == len(edition.problems)


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
    study = studies.get_command(click.Context(click.Command("study")), words[4])
    assert study is not None, words[4]
    context = study.make_context(words[4], words[5:])
    assert Path("perf/studies/results") in context.params["out"].parents


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


@pytest.mark.parametrize("ask", [
    lambda: memory_peaks({"memory": {"rows": [{"size": "2.7B", "context": 128, "precision": "fp32"}]}}),
    lambda: TrainStep({"train-step": {"rows": []}}).speedup("2.7B", 512),
    lambda: WarmUp({"warm-up": {"rows": [{"size": "small"}]}}).first_over_settled("2.7B"),
    lambda: Beside({"attention-long": {"rows": []}}).select(group="long"),
])  # fmt: skip
def test_what_a_part_of_a_study_lacks_is_not_on_file(ask):
    with pytest.raises(NotOnFile):
        ask()


def test_what_no_row_has_is_missing(tmp_path):
    naive, absent = {"strategy": "naive", "world_size": 2}, {"strategy": "naive", "world_size": 4}
    assert missing(tmp_path, DDP, naive, absent) == [absent]


def refused(monkeypatch, error):
    """The row of a cell whose measuring raised `error`, as a study writes it."""
    monkeypatch.setattr(lm, "training_of", lambda setting: (_ for _ in ()).throw(error))
    (row,) = lm.rows_of([lm.Setting("xl", 512, 4, "bf16", "compiled", "sdpa")], lambda training, setting: {})
    return row


def test_a_row_that_failed_is_no_measurement_but_one_that_did_not_fit_is(tmp_path, monkeypatch):
    asked = {"size": "xl", "variant": "compiled"}
    assert missing(tmp_path, [refused(monkeypatch, WrongResult("off by 1"))], asked) == [asked]
    assert missing(tmp_path, [refused(monkeypatch, torch.OutOfMemoryError("allocate 2.00 GiB"))], asked) == []


def test_a_cell_that_is_predicted_not_to_fit_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(lm, "memory_bytes", lambda: 24e9)
    rows = list(lm.rows_of([lm.Setting("xl", 512, 4, "fp32", "eager", "reference")], lambda *_: {"tried": True}))
    assert "tried" not in rows[0]
    assert missing(tmp_path, rows, {"size": "xl", "context": 512}) == []


@pytest.mark.parametrize(
    ("status", "answered"),
    [
        ("out of memory: asked for 2.00 GiB", True),
        ("does not fit: predicted 5 GiB", True),
        ("RuntimeError: no", False),
    ],
)
def test_rows_of_older_files_are_read_alike(tmp_path, status, answered):
    asked = {"strategy": "flat"}
    assert missing(tmp_path, [ddp_row("flat") | {"status": status}], asked) == [asked] * (not answered)


def test_results_of_more_gpus_lie_beside_those_of_one():
    need = Need("ddp", "--size xl", ranks=2)
    assert (
        need.command("box")
        == need.command("box-x4")
        == ("python -m perf study ddp --size xl --out perf/studies/results/box-x2")
    )
