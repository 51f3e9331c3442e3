"""`perf doctor` reports each check in a line; a missing part is a remark, never a traceback."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from perf.commands import doctor
from perf.machines import MACHINE_FILE
from tests.repositories import ROOT, needs_checkout


def examine(**environment):
    done = CliRunner().invoke(doctor.command, env={name: str(value) for name, value in environment.items()})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def line(text, name):
    lines = text.splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith(name + "  "))
    folded = itertools.takewhile(lambda line: line.startswith(" "), lines[first + 1 :])
    return " ".join([lines[first].rstrip(), *map(str.strip, folded)])


def heading_of(text, name):
    """Return the heading of the table with a class: whether it runs here, and why not."""
    (table,) = (part for part in text.split("\n\n") if any(one.startswith(f"{name} ") for one in part.splitlines()))
    return table.strip().partition("\n")[0]


def broken(folder, package):
    """Write to a folder for PYTHONPATH, in which importing `package` fails as if it were not installed."""
    message = f"No module named '{package}'"
    (folder / f"{package}.py").write_text(f"raise ModuleNotFoundError({message!r}, name={package!r})\n")


@needs_checkout
def test_every_check_and_every_class_has_one_line():
    done = examine()
    assert done.exit_code == 0, done.output
    assert line(done.output, "torch").split()[1] == torch.__version__
    for name in doctor.CHECKS:
        assert f"\n{name} " in done.output
    for name in ("smoke.SmokeAttention", "smoke.SmokeControls"):
        assert heading_of(done.output, name) == "Run here"
    assert "itself failed" not in done.output
    if not torch.cuda.is_available():
        assert heading_of(done.output, "attention.FlashAttention").startswith("Do not run here: needs a CUDA GPU")
        assert max(map(len, done.output.splitlines())) <= 120


def test_without_git_nothing_runs_and_every_class_says_so(tmp_path):
    done = examine(PATH=tmp_path)
    assert done.exit_code == 1
    assert "PATH" in line(done.output, "git")
    assert heading_of(done.output, "smoke.SmokeAttention").endswith(" installed")
    assert done.stderr.startswith("Error: ") and len(done.stderr.splitlines()) == 1


def test_a_missing_package_is_a_remark_that_tells_how_to_install_it(tmp_path):
    packages = ("asv", "torch")
    for package in packages:
        broken(tmp_path, package)
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "perf", "doctor"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    for package in packages:
        assert line(done.stdout, package).endswith(f"{package}': pip install -e '.[dev]'")
        assert f"{package} is not installed" in heading_of(done.stdout, "smoke.SmokeAttention")
    assert "itself failed" not in done.stdout and "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("given", ["", "own.json"])
def test_a_machine_that_asv_does_not_know_is_told_the_command(tmp_path, monkeypatch, given):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(MACHINE_FILE, given and str(tmp_path / given))
    assert "perf machine" in doctor._machine_file().remark
    (tmp_path / (given or ".asv-machine.json")).write_text("not json")
    assert "cannot be read" in doctor._machine_file().remark


@needs_checkout
def test_a_shallow_clone_and_a_folder_without_git_are_told(tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    command = ["git", "clone", "-q", "--depth", "1", "--no-checkout", ROOT.as_uri(), str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    main = ["git", "-C", str(clone), "update-ref", "refs/heads/main", "HEAD"]  # this checkout may be of another branch
    subprocess.run(main, check=True, capture_output=True)
    monkeypatch.setattr(doctor, "ROOT", clone)
    found = doctor._git()
    assert found.found.endswith(" 1 commit")
    assert found.blocks == ""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert str(tmp_path) in doctor._git().blocks


@pytest.mark.parametrize(
    ("triton", "numpy", "fails"),
    [("3.6.0", "2.4.0", True), ("3.6.0", "2.3.9", False), ("3.7.1", "2.4.6", False), ("3.6.0", "2.10.0", True)],
)
def test_the_interpreter_that_fails_is_named_before_the_tests_do(triton, numpy, fails, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "installed", {"triton": triton, "numpy": numpy}.get)
    assert (doctor._interpreter().remark != "ok") == fails


def test_a_check_that_fails_costs_its_own_line_only():
    def fail():
        raise OSError("libcudart.so is broken\nsecond line")

    failed = doctor.checked(fail)
    assert failed.remark == "OSError: libcudart.so is broken"
