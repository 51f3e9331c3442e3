"""Commands that read commits end in one line without git, and outside of a repository."""

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perf.__main__ import main
from perf.commands import demo, missed
from perf.gate import acceptance, checkouts
from perf.writeup import bundle
from tests.throwaway import MACHINE

COMMIT = "0123456789" * 4
COMMANDS = {
    "missed": ["missed", "smoke", "--machine", MACHINE],
    "missed-gate": ["missed", "--gate", "--machine", MACHINE],
    "gate": ["gate", "HEAD", "--dry-run"],
    "machine-code": ["machine-code", "HEAD"],
    "gate-tree": ["gate", "--env", sys.executable, sys.executable, "--no-tests"],
    "self-test": ["self-test", "-b", "SmokeControls|SmokeCollectives"],
    "mutations": ["mutations", "HEAD"],
    "mutations-tree": ["mutations"],
    "demo": ["demo"],
    "merge": ["merge", "source"],
}


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder that is no repository and has nothing on its PATH; every command takes it for the checkout."""
    for module in (acceptance, checkouts, demo, missed, bundle):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # a lock of its own
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    records = tmp_path / "source" / "records" / MACHINE
    records.mkdir(parents=True)
    (records / f"{COMMIT}.jsonl.1").write_text("")
    return tmp_path


def last_line(command: str) -> str:
    done = CliRunner().invoke(main, COMMANDS[command])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code != 0
    (line,) = (line for line in done.output.splitlines() if line.startswith("Error: "))
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_without_git(command: str, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(outside))
    assert "git is not installed" in last_line(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_outside_of_a_repository(command: str, outside: Path) -> None:
    line = last_line(command)
    assert str(outside) in line and "not a git repository" in line


def test_a_bundle_of_a_checkout_needs_git_too(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (outside / ".git").mkdir()
    monkeypatch.setenv("PATH", str(outside))
    with pytest.raises(click.ClickException, match="git is not installed"):
        list(bundle.files(outside))
