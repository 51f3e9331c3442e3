"""The README's first command, in a shallow clone with uncommitted changes."""

import shutil
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from perf.__main__ import main
from perf.commands import demo
from tests.repositories import ROOT, needs_checkout


@pytest.fixture
def clone(tmp_path):
    """A shallow clone of this repository with this working tree's `perf/` in it."""
    target = tmp_path / "clone"
    url = ROOT.as_uri()
    subprocess.run(["git", "clone", "-q", "--depth", "1", url, str(target)], check=True, capture_output=True)
    shutil.rmtree(target / "perf")
    shutil.copytree(ROOT / "perf", target / "perf", ignore=shutil.ignore_patterns("__pycache__"))
    with (target / "perf" / "selection.py").open("a") as stream:
        stream.write('\nSETS["demo"] = r"SmokeAttention.*128.*sdpa"  # an uncommitted change\n')
    return target


def status(folder):
    return subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def touch_package(clone):
    """The one commit of a shallow clone adds every file, so it touches cs336_systems."""
    log = subprocess.run(
        ["git", "log", "--format=%H", "--", "cs336_systems"], cwd=clone, check=True, capture_output=True, text=True
    )
    return log.stdout.split()


@needs_checkout
@pytest.mark.skipif(torch.cuda.is_available(), reason="the demo of a GPU machine is run by hand: it holds the GPU")
def test_demo_measures_publishes_and_leaves_the_checkout_as_it_was(clone):
    before = status(clone)
    (commit,) = touch_package(clone)
    command = [sys.executable, "-m", "perf", "demo", "--commits", "1"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert status(clone) == before
    assert "shallow" in done.stdout
    assert "uncommitted" in done.stdout
    assert commit[:7] in done.stdout
    assert "SmokeAttention" in done.stdout
    assert ".asv/demo/html" in done.stdout
    site = clone / ".asv" / "demo" / "html"
    assert (site / "index.html").exists()
    assert "Error" not in done.stderr


def one_line(command, **environment):
    """The line with which a command of this process fails."""
    done = CliRunner().invoke(main, command, env=environment)
    assert done.exit_code == 1
    (line,) = done.output.splitlines()
    return line


def test_demo_without_git_is_one_clear_line(tmp_path):
    assert "git " in one_line(["demo"], PATH=str(tmp_path))


def test_demo_outside_a_repository_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    assert str(tmp_path) in one_line(["demo"], GIT_CEILING_DIRECTORIES=str(tmp_path.parent))


@pytest.mark.parametrize("shard", ["0/4", "5/4", "4", "a/b"])
def test_a_shard_that_is_none_is_refused_with_what_is_allowed(shard):
    done = CliRunner().invoke(main, ["select", "gpu", "--shard", shard])
    assert done.exit_code == 2
    assert shard in done.output and "I/N" in done.output


@pytest.mark.parametrize("arguments", [["demo", "--commits", "0"], ["select", "nothing"], ["study", "nothing"]])
def test_bad_input_is_a_usage_line_and_status_2(arguments):
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert done.output.startswith("Usage:")


@pytest.mark.parametrize("arguments", [[], ["demo"], ["machine"], ["select"], ["study"], ["study", "clock"]])
def test_every_help_is_printed(arguments):
    done = CliRunner().invoke(main, [*arguments, "--help"])
    assert done.exit_code == 0
    assert len(done.output) > 100
