"""The README's first command, in a shallow clone with uncommitted changes."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def perf(*arguments, cwd, env=None):
    command = [sys.executable, "-m", "perf", *arguments]
    return subprocess.run(command, cwd=cwd, env=env or os.environ, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path):
    """A shallow clone of this repository with this working tree's `perf/` in it."""
    target = tmp_path / "clone"
    url = ROOT.as_uri()
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    subprocess.run(["git", "clone", "-q", "--depth", "1", url, str(target)], check=True, capture_output=True)
    shutil.rmtree(target / "perf")
    shutil.copytree(ROOT / "perf", target / "perf", ignore=shutil.ignore_patterns("__pycache__"))
    with (target / "perf" / "selection.py").open("a") as stream:
        stream.write("\n# an uncommitted change\n")
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="the demo of a GPU machine is run by hand: it holds the GPU")
def test_demo_measures_publishes_and_leaves_the_checkout_as_it_was(clone):
    before = status(clone)
    (commit,) = touch_package(clone)
    with tempfile.TemporaryDirectory(prefix="perf-") as locks:  # short, for sockets; no other test's run is waited for
        done = perf("demo", "--commits", "1", cwd=clone, env=os.environ | {"TMPDIR": locks})
    assert done.returncode == 0, done.stdout + done.stderr
    assert status(clone) == before
    assert "This is a shallow clone" in done.stdout
    assert "uncommitted changes" in done.stdout
    assert commit[:7] in done.stdout
    assert "SmokeAttention" in done.stdout
    assert "python -m http.server 8000 --directory .asv/demo/html" in done.stdout
    site = clone / ".asv" / "demo" / "html"
    assert (site / "index.html").exists()
    assert "Error" not in done.stderr


def test_demo_without_git_is_one_clear_line(clone, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = perf("demo", cwd=clone, env=os.environ | {"PATH": str(empty)})
    assert done.returncode == 1
    assert done.stderr.strip() == "Error: git is not installed; the demo measures commits, so it needs git"


def test_demo_outside_a_repository_is_one_clear_line(clone):
    shutil.rmtree(clone / ".git")
    done = perf("demo", cwd=clone, env=os.environ | {"GIT_CEILING_DIRECTORIES": str(clone.parent)})
    assert done.returncode == 1
    assert "is not a git repository" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("shard", ["0/4", "5/4", "4", "a/b"])
def test_a_shard_that_is_none_is_one_clear_line(shard):
    done = perf("select", "gpu", "--shard", shard, cwd=ROOT)
    assert done.returncode == 2
    assert f"{shard!r} was given; allowed: I/N" in done.stderr


@pytest.mark.parametrize("arguments", [["demo", "--commits", "0"], ["select", "nothing"], ["study", "nothing"]])
def test_bad_input_is_a_usage_line_and_status_2(arguments):
    done = perf(*arguments, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage:")
    assert "Traceback" not in done.stderr


def test_help_teaches():
    for arguments in ([], ["demo"], ["machine"], ["select"], ["study"], ["study", "clock"]):
        done = perf(*arguments, "--help", cwd=ROOT)
        assert done.returncode == 0
        assert len(done.stdout) > 100
