"""A misspelt option or command fails with a line that names the remedy."""

import functools
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perf.__main__ import main
from perf.options import Commands, command_line
from tests.throwaway import ROOT


@pytest.mark.parametrize(
    ("command", "helps"),
    [
        (["study", "clok"], "clock"),
        (["gaet", "HEAD"], "gate"),
        (["study", "zzz"], "train-step"),
        (["gate", "HEAD", "--budget", "nan"], "finite"),
        (["gate", "HEAD", "--budget", "inf"], "finite"),
        (["self-test", "--plant", "nan"], "finite"),
        (["machine-code"], "BASE"),
        (["study", "attention", "--half-width", "nan"], "finite"),
        (["study", "ddp", "--bucket-size-mb", "nan"], "finite"),
        (["missed", "history", "--machine", "nvidia-h20"], "nvidia-h200"),
        (["gate", "HEAD", "HEAD", "-b", "SmokeControls"], "controls alone"),
        (["gate", "HEAD", ""], "empty argument"),
        (["gate", "HEAD", "-b", ""], "empty argument"),
        (["study", "accounting", "--out="], "empty argument"),
        (["gate", "HEAD", "--dry-run", "--keep"], "--dry-run was given with"),
        (["gate", "HEAD", "--dry-run", "--every-row"], "--dry-run was given with"),
        (["gate", "HEAD~1", "HEAD", "--json", "x", "--markdown", "./x"], "--json and --markdown are both"),
        (["report", "--answers", "--edition", "2025"], "--answers and --edition"),
        (["missed", "--gate", "--limit", "2"], "--gate was given with --limit"),
        (["case", "--list", "--profile", "torch"], "--list and --profile"),
        (["mutations", "no-such-commit", "--list"], "no-such-commit"),
        (["mutations", "--shard", "200/200"], "--shard 200/200"),
        (["mutations", "--shard", "²/²"], "²/²"),
    ],
)
def test_what_is_misspelt_or_no_number_is_one_line_that_helps(command: list[str], helps: str) -> None:
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)
    assert helps in done.output.strip().splitlines()[-1]


def test_an_output_that_cannot_be_written_is_one_line_and_nobody_who_reads_it_none():
    select = [sys.executable, "-m", "perf", "select", "gpu"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(select, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "No space" in done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(select, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.parametrize(("verdict", "exits_with"), [(1, 1), (0, 2)])
def test_a_gate_whose_output_cannot_be_written_writes_its_files_and_keeps_its_verdict(tmp_path, verdict, exits_with):
    code = "import sys; from pathlib import Path; from perf.commands import judging\n"
    code += f"judging.end('report', {{Path(sys.argv[1]): 'kept'}}, {verdict})"
    with Path("/dev/full").open("w") as full:
        run = [sys.executable, "-c", code, tmp_path / "report.json"]
        done = subprocess.run(run, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, (tmp_path / "report.json").read_text()) == (exits_with, "kept")
    assert "No space" in done.stderr and "Traceback" not in done.stderr


def test_a_report_that_could_not_be_kept_is_not_said_to_be(tmp_path, capsys):
    from perf.commands import judging

    (tmp_path / "file").write_text("")
    for kept in (tmp_path / "kept.json", tmp_path / "file" / "report.json"):
        with pytest.raises(SystemExit):
            judging.end("report", {kept: "text"}, 0, kept=kept)
        assert (f"Kept in {kept}" in capsys.readouterr().out) == kept.exists()


@pytest.mark.parametrize("given", [["--json", "/home/me/x.json"], ["--json=/home/me/x.json"]])
def test_a_published_command_names_no_file_of_this_machine(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["perf", "gate", "--keep", *given, "HEAD", "-b", "a b"])
    assert command_line(flags=["--keep"], valued=["--json"]) == "python -m perf gate HEAD -b 'a b'"


@pytest.mark.parametrize("arguments", [(), ("study",)])
def test_no_help_of_a_command_is_cut(arguments):
    done = CliRunner().invoke(main, [*arguments, "--help"], terminal_width=80)
    listed = done.output.partition("Commands:")[2]
    assert len(listed.splitlines()) > 5
    assert "..." not in listed


@pytest.mark.parametrize(
    ("arguments", "repeatable"),
    [(("study", "attention"), 7), (("study", "precision"), 1), (("self-test",), 1), (("gate",), 0)],
)
def test_the_help_says_which_options_are_repeatable(arguments, repeatable):
    assert CliRunner().invoke(main, [*arguments, "--help"]).output.count("Repeatable.") == repeatable
    command = functools.reduce(lambda group, name: group.get_command(click.Context(group), name), arguments, main)
    assert sum(getattr(option, "multiple", False) for option in command.params) == repeatable


def test_a_command_runs_in_a_thread_too():
    done = []
    thread = threading.Thread(target=lambda: done.append(CliRunner().invoke(main, ["select", "smoke"])))
    thread.start()
    thread.join()
    assert done[0].exit_code == 0, done[0].output


def test_a_dependency_that_is_not_installed_is_one_line_and_a_module_of_ours_an_error(monkeypatch):
    for name, ends in (("filelock", click.ClickException), ("perf.git", ModuleNotFoundError)):
        missing = ModuleNotFoundError(f"No module named {name!r}", name=name)
        monkeypatch.setattr(importlib, "import_module", lambda _, missing=missing: raised(missing))
        with pytest.raises(ends, match=f"No module named '{name}'"):
            Commands({"command": "perf.commands.doctor"}).get_command(click.Context(main), "command")


def raised(error):
    raise error


def test_without_any_dependency_the_way_to_install_them_is_one_line():
    bare = [sys.executable, "-S", "-m", "perf", "demo"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(bare, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "Error: No module named 'click'; allowed: after pip install -e '.[dev]'\n",
    )
