"""What the studies compute from what was measured."""

import ast
import json
import os
import re
import tempfile
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from perf import harness
from perf.__main__ import main
from perf.harness.status import PHASES
from perf.options import Terminated
from perf.studies import STUDIES, document, spent
from perf.studies.progress import progress
from tests.repositories import git
from tests.studies.running import invoke, run_study

MEASURES_NOTHING = {"accounting", "spent"}
MEASURES_ONE_MODEL = {"leaderboard-2026"}  # a toy of it on a CPU


def test_every_study_is_on_the_command_line():
    folder = Path(document.__file__).parent
    commands = [
        path.relative_to(folder).with_suffix("").as_posix().replace("/", ".")
        for path in folder.rglob("*.py")
        if any(getattr(node, "name", "") == "command" for node in ast.parse(path.read_text()).body)
    ]
    assert sorted(commands) == sorted(STUDIES.values())


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_that_measures_takes_a_tiny_size(name):
    study = main.get_command(None, "study").get_command(None, name)
    options = {one.name: one for one in study.params if "--size" in one.opts}
    if name in MEASURES_NOTHING | MEASURES_ONE_MODEL:
        assert not options
        return
    (size,) = options.values()
    assert size.type.convert("tiny", size, None) == "tiny"


@pytest.mark.parametrize("name", STUDIES)
def test_a_number_that_no_machine_could_measure_is_one_line(name):
    study = main.get_command(None, "study").get_command(None, name)
    for option in study.params:
        if isinstance(option.type, click.IntRange):
            assert option.type.max is not None
            done = invoke(name, option.opts[0], str(10**30))
            assert done.exit_code == 2, done.output
            assert option.opts[0] in done.output and str(10**30) in done.output.splitlines()[-1]


def test_a_value_that_is_given_twice_counts_once(tmp_path):
    done = invoke("accounting", *["--problem", "fsdp_calcs"] * 2, "--out", str(tmp_path))
    assert done.exit_code == 0 and done.output.count("fsdp_calcs (") == 1
    twice = ["--size", "tiny", "--beyond", *["--seq-len", "16", "--d", "8"] * 2]
    rows, _ = run_study(tmp_path, "attention-memory", *twice)
    assert len(rows) == len({(row["seq_len"], row["d"]) for row in rows})


@pytest.mark.skipif(torch.cuda.is_available(), reason="they measure here")
@pytest.mark.parametrize("name", ["clock", "noise"])
def test_what_needs_a_gpu_says_so_in_one_line(name):
    done = invoke(name, "--size", "tiny")
    assert done.exit_code == 1
    assert re.fullmatch("Error: .*GPU.*\n", done.output)


def test_a_study_that_is_interrupted_leaves_the_rows_until_then(tmp_path):
    def rows():
        yield {"x": 1}
        yield {"x": 2}
        raise KeyboardInterrupt

    path = tmp_path / "study.json"
    with pytest.raises(KeyboardInterrupt, match=r"study\.json\.part$"):
        document.kept(rows(), "cpu", path, lambda row: row | {"y": 3})
    part = tmp_path / "study.json.part"
    assert json.loads(part.read_text())["rows"] == [{"x": 1, "y": 3}, {"x": 2, "y": 3}]
    assert list(tmp_path.iterdir()) == [part]  # no result of an earlier run is replaced by a part
    document.kept([{"x": 1}], "cpu", path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "ending", [ValueError("no GPU left"), click.ClickException("as was said"), SystemExit(1), Terminated(143)]
)
def test_what_else_ends_a_study_keeps_its_words_and_one_line_says_where_the_rows_are(tmp_path, capsys, ending):
    def rows():
        yield {"x": 1}
        raise ending

    with pytest.raises(type(ending)) as raised:
        document.kept(rows(), "cpu", tmp_path / "study.json")
    assert raised.value is ending
    assert capsys.readouterr().err == f"What was measured is in {tmp_path / 'study.json.part'}\n"


@pytest.mark.parametrize("ending", [KeyboardInterrupt, ValueError])
def test_what_ends_a_study_before_its_first_row_names_no_file(tmp_path, capsys, ending):
    def rows():
        raise ending
        yield {}

    with pytest.raises(ending, match=r"^$"):
        document.kept(rows(), "cpu", tmp_path / "study.json")
    assert capsys.readouterr().err == ""


def test_documents_that_were_whole_stay_when_later_ones_are_interrupted(tmp_path):
    paths = [tmp_path / f"{name}.json" for name in ("one", "other")]
    document.write_in_parts([{path: {"rows": [{"x": 1}]} for path in paths}])

    def states():
        yield {paths[0]: {"rows": [{"x": 2}]}}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        document.write_in_parts(states())
    assert [json.loads(path.read_text())["rows"] for path in paths] == [[{"x": 1}]] * 2
    assert json.loads((tmp_path / "one.json.part").read_text())["rows"] == [{"x": 2}]


def test_a_place_that_cannot_be_written_is_one_line_before_anything_is_measured(tmp_path):
    measured = []

    @click.command()
    @document.out_option
    def study(out):
        measured.append(out)

    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(study, ["--out", str(tmp_path / "file" / "folder")])
    assert (done.exit_code, measured) == (1, [])
    assert re.fullmatch(r"Error: .*folder.* cannot be written: Not a directory\n", done.output)
    new = tmp_path / "new" / "folder"
    assert CliRunner().invoke(study, ["--out", str(new)]).exit_code == 0
    assert (measured, list(new.iterdir())) == ([new], [])


@pytest.mark.parametrize("ends", ["well", "with an error", "with an error before its first row"])
def test_rows_without_a_place_go_to_a_folder_that_is_said(ends, studies_folder):
    @click.command()
    @document.out_option
    def study(out):
        if ends != "with an error before its first row":
            document.write(out / "study.json", {"rows": []})
        if ends != "well":
            raise click.ClickException("as was to be shown")

    for _ in range(2):  # the second takes the first's place
        done = CliRunner().invoke(study, [])
        left = [path.name for path in studies_folder.iterdir()]
        assert left == ([] if "before" in ends else ["study.json"])
        assert (f"Rows and figures: {os.path.relpath(studies_folder)}\n" in done.output) == bool(left)
    assert done.exit_code == (ends != "well")


def test_the_time_of_a_run_is_all_accounted_for():
    lines = [
        {"kind": "process", "started_in_s": 5.0},
        {"kind": "visit", "spent_ms": {"build": 500.0, "sample": 3000.0}, "samples_ns": [1e9, 1e9]},
        {"kind": "visit", "status": "crashed"},
        {"kind": "run", "cases": 2, "seconds": 10.0},
    ]
    cases, seconds = spent.spent(lines)
    assert cases == 2
    assert sum(seconds.values()) == pytest.approx(10)
    assert {name: value for name, value in seconds.items() if value} == pytest.approx(
        {"timed": 2.0, "sample": 1.0, "build": 0.5, "start": 5.0, "rest": 1.5}
    )


def test_every_phase_that_the_harness_records_has_words():
    folder = Path(harness.__file__).parent
    recorded = {name for path in folder.glob("*.py") for name in re.findall(r'spent\.on\("(\w+)"\)', path.read_text())}
    assert recorded and recorded <= PHASES.keys()


def test_what_a_run_that_died_had_measured_is_of_the_run_that_went_on_or_of_none():
    visit = {"kind": "visit", "spent_ms": {"build": 3000.0}}
    whole = [visit, {"kind": "run", "cases": 1, "seconds": 4.0}]
    assert spent.spent([*whole, visit]) == spent.spent(whole)
    cases, seconds = spent.spent([*whole, visit, visit, {"kind": "run", "cases": 2, "seconds": 4.0}])
    assert cases == 3
    assert seconds["build"] == 9.0
    assert seconds["rest"] == 1.0, "never less than nothing"


def test_rows_are_written_with_their_machine_and_command(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where what cannot be written is saved
    whole = document.document("cpu", [{"x": [[1.5, 2], [3e-7, None]], "y": "[\n1,\n2\n]", "z": []}])
    document.write(tmp_path / "new" / "study.json", whole)
    text = (tmp_path / "new" / "study.json").read_text()
    read = json.loads(text)
    assert read["rows"] == [{"x": [[1.5, 2], [3e-7, None]], "y": "[\n1,\n2\n]", "z": []}]
    assert "[1.5, 2],\n" in text
    assert read["software"]["torch"]
    (tmp_path / "file").write_text("")
    with pytest.raises(click.ClickException, match="cannot be written"):
        document.write(tmp_path / "file" / "study.json", whole)


def test_a_document_names_the_commit_and_says_where_the_code_is_another(tmp_path, monkeypatch):
    def named():
        document._commit.cache_clear()
        return document.document("cpu", [])["commit"]

    monkeypatch.setattr(document, "ROOT", tmp_path)
    assert named() is None
    module, result = tmp_path / "perf" / "module.py", tmp_path / "perf" / "results" / "result.json"
    for path in (module, result):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "one"], ["tag", "v1"]):
        git(tmp_path, *command)
    commit = git(tmp_path, "rev-parse", "HEAD")[:8]
    assert named() == commit
    result.write_text("measured")
    assert named() == commit
    module.write_text("changed")
    assert named() == f"{commit} with changes"
    document._commit.cache_clear()


def test_a_bar_is_silent_unless_a_terminal_looks(capsys):
    assert list(progress([1, 2], unit="case")) == [1, 2]
    assert capsys.readouterr() == ("", "")
