"""`python -m perf gate` as its users run it, in a throw-away repository."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from perf import selection
from perf.commands.gate import command
from perf.gate.rows import rows
from perf.selection import shard
from tests.repositories import needs_checkout
from tests.throwaway import Repository

ROWS = r"SmokeAttention.*\(128.*'reference'"
KEYS = {f"smoke.SmokeAttention(128, 64, 'float32', '{mode}', 'reference')" for mode in ("forward", "forward_backward")}


def gate(repository: Repository, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return repository.python("-m", "perf", "gate", *arguments)


def edit(repository: Repository, before: str, after: str) -> None:
    path = repository.folder / "cs336_systems" / "attention" / "reference.py"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def words(path: Path) -> dict[str, str]:
    document: dict[str, Any] = json.loads(path.read_text())
    return {verdict["key"]: verdict["word"] for verdict in document["judgement"]["verdicts"]}


def test_a_wrong_head_is_broken_whatever_the_machine_does(repository: Repository, tmp_path: Path) -> None:
    edit(repository, "@ v", "@ v * 1.01")
    head = repository.commit("A <b>faster</b> softmax")
    report, comment = tmp_path / "out" / "report.json", tmp_path / "out" / "comment.md"
    repository.environment["CUDA_VISIBLE_DEVICES"] = ""  # so that the leaderboard's row has no device
    files = ["--json", str(report), "--markdown", str(comment), "--keep"]
    done = gate(repository, "base", "HEAD", "-b", f"{ROWS}|Leaderboard.*'triton'", "--no-tests", *files)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("2 broken")
    assert "out differs from float64" in done.stdout
    assert words(report) == dict.fromkeys(KEYS, "BROKEN")
    document = json.loads(report.read_text())
    assert document["head"] == {"commit": head, "subject": "A <b>faster</b> softmax"}
    assert document["exit_status"] == 1
    assert "needs a CUDA GPU" in document["without"][0][0]
    assert "needs a CUDA GPU" in done.stdout
    (kept,) = (repository.folder / "perf" / "records").glob("*/gate/*.json")
    evidence = document.pop("evidence")
    assert json.loads(kept.read_text()) == document
    controls = [row for row in evidence if row["is_control"] and row["case"]["device"] == "cpu"]
    assert len(controls) == 3
    visits = [visit for row in controls for visit in row["visits"]]
    assert {visit["process"] for visit in visits} == {0}, "no row was left to time"
    text = comment.read_text()
    assert "2 broken" in text
    assert "<b>" not in text
    assert not list(tmp_path.glob("out/*.tmp"))


@pytest.mark.slow
def test_the_working_tree_is_head_unless_one_is_named(repository: Repository, tmp_path: Path) -> None:
    edit(repository, "def scaled_dot_product_attention", "def another_name")
    done = gate(repository, "base", "-b", ROWS, "--no-tests", "--json", str(tmp_path / "report.json"))
    assert set(words(tmp_path / "report.json").values()) == {"GONE"}, done.stderr
    assert "working tree" in done.stdout


@pytest.mark.slow
def test_what_only_head_has_is_new(repository: Repository, tmp_path: Path) -> None:
    edit(repository, "def scaled_dot_product_attention", "def another_name")
    other = repository.commit("without")
    gate(repository, other, "base", "-b", ROWS, "--no-tests", "--json", str(tmp_path / "report.json"))
    assert set(words(tmp_path / "report.json").values()) == {"NEW"}


@pytest.mark.slow
@pytest.mark.parametrize(("test", "passes"), [("assert True", True), ("assert 1 == 2", False)])
def test_heads_own_tests_come_first_and_red_means_no_timing(
    repository: Repository, tmp_path: Path, test: str, passes: bool
) -> None:
    (repository.folder / "tests").mkdir()
    (repository.folder / "tests" / "test_it.py").write_text(f"def test_it():\n    {test}\n")
    edit(repository, "def scaled_dot_product_attention", "CHANGED = True\n\n\ndef scaled_dot_product_attention")
    repository.commit("with tests, and code that the rows import")
    (repository.folder / "tests" / "test_it.py").write_text("broken syntax, which is not HEAD's\n")
    done = gate(repository, "base", "HEAD", "-b", ROWS, "--budget", "0.1", "--json", str(tmp_path / "report.json"))
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["tests_passed"] is passes
    assert ("1 passed" if passes else "1 failed") in document["tests"]
    assert bool(document["processes"]) is passes
    if not passes:
        assert done.returncode == 1
        assert "assert 1 == 2" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("nowhere",), "'nowhere' was given; allowed: a commit", marks=needs_checkout),
        (("HEAD", "HEAD", "-b", "NoSuchClass"), "no case matches 'NoSuchClass'"),
        (("HEAD", "HEAD", "-b", "controls.Clocks"), "controls alone"),
        (("HEAD", "HEAD", "-b", "("), "'(' was given; allowed: a regular expression"),
        (("HEAD", "HEAD", "-b", "x", "--set", "smoke"), "--set and -b were both given; allowed: one of them"),
        (("HEAD", "HEAD", "--set", "huge"), "'huge' is not one of "),
        (("HEAD", "HEAD", "--budget", "0"), "0.0 is not in the range"),
        ((), "BASE was not given"),
        (("HEAD", "--json", "/proc/report.json"), "/proc/report.json cannot be written"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of its own
    done = CliRunner().invoke(command, [*arguments, "--no-tests"])
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_second_gate_is_refused_and_a_killed_one_leaves_nothing(repository: Repository, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perf", "gate", "base", "HEAD", "-b", ROWS, "--no-tests"]
    environment = os.environ | repository.environment | {"TMPDIR": str(repository.folder.parent)}
    with subprocess.Popen(command, cwd=repository.folder, env=environment, stderr=subprocess.PIPE, text=True) as first:
        try:
            assert first.stderr is not None
            assert any("5 rows, controls included" in line for line in first.stderr)
            done = gate(repository, "base", "HEAD", "-b", ROWS, "--no-tests")
        finally:
            first.kill()
    assert done.returncode == 2
    assert "another measurement runs on " in done.stderr
    assert f"process {first.pid}" in done.stderr
    done = gate(repository, "base", "HEAD", "-b", ROWS, "--no-tests", "--budget", "0.1")
    assert "another measurement" not in done.stderr


@pytest.mark.parametrize("selected", [rows, lambda pattern: shard(pattern, 1, 2)])
def test_a_benchmark_file_that_does_not_import_is_no_smaller_selection(selected, monkeypatch):
    broken = ("smoke", None, "perf/benchmarks/smoke.py: SyntaxError: no")
    monkeypatch.setattr(selection, "asv_classes", lambda: iter([broken]))
    with pytest.raises(click.ClickException, match=r"^perf/benchmarks/smoke.py: SyntaxError"):
        selected("SmokeAttention")
