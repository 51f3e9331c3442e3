"""One commit in two environments: real processes of two Pythons, taking turns."""

import json
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perf.commands.gate import command
from perf.gate.terminal import text
from perf.harness import two_processes
from perf.harness.case import Case
from perf.harness.two_processes import AlternatingProcesses
from perf.harness.worker_process import WorkerProcess
from tests.commands.test_gate import ROWS, gate
from tests.gate.reports import report, verdict
from tests.repositories import needs_checkout
from tests.throwaway import Repository

CASE = Case("smoke.SmokeControls", "controls", {"control": "launch"}, "cpu", "wall", "warm")
OTHER = "9.9.9"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A Python with another Triton."""
    packages = tmp_path / "environment" / "packages"
    packages.mkdir(parents=True)
    (packages / "triton.py").write_text(f"__version__ = {OTHER!r}\n")
    executable = tmp_path / "environment" / "bin" / "python"
    executable.parent.mkdir()
    executable.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    return executable.parents[1]


def test_each_arm_is_measured_by_its_own_python_in_turn(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(two_processes.STAY, "max_seconds", 1e9)
    both = AlternatingProcesses("cpu", (tmp_path, tmp_path), (sys.executable, str(environment / "bin" / "python")))
    try:
        greeting = both.start()
        assert greeting["software"]["triton"] != OTHER
        assert greeting["head_software"] == greeting["software"] | {"triton": OTHER}
        request: dict[str, Any] = {"case": CASE.to_json(), "ceilings": {}, "first": True, "arms": ["base", "head"]}
        reply = both.ask(request, 250.0)
        assert (reply["status"], reply["base"]["status"], reply["head"]["status"]) == ("ok", "ok", "ok")
        assert len(reply["base_ns"]) == len(reply["head_ns"]) == 40
        alone = both.ask(request | {"arms": ["head"]}, 250.0)
        assert alone["head"]["status"] == "ok"
        assert "head_ns" not in alone
        with pytest.raises(ValueError, match="injection was given"):
            both.ask(request | {"injection": {"kind": "host", "size": 1.0}}, 250.0)
    finally:
        both.stop()
    assert not both.alive()


def test_the_arms_take_turns_a_b_b_a_and_throttled_samples_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    both = AlternatingProcesses("cpu", (Path("a"), Path("b")), ("python", "python"))

    def ask(process: WorkerProcess, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        (arm,) = [name for name, one in both._processes.items() if one is process]
        asked.append(arm)
        number = len(asked)
        throttled = [1] if number == 2 else []
        return {"status": "ok", "reason": "", "samples_ns": [number * 10, number * 10 + 1], "throttled": throttled}

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    request = {"case": CASE.to_json(), "ceilings": {}, "first": False, "arms": ["head", "base"]}
    reply = both.ask(request, 250.0)
    assert asked == ["head", "base", "base", "head"]
    assert reply["base_ns"] == [20, 30, 31]
    assert reply["head_ns"] == [10, 40, 41]
    assert reply["throttled"] == 1


def test_a_report_names_both_environments() -> None:
    shown = text(report(verdict("SLOWER"), head_software={"torch": "2.13.0", "triton": "3.7.1"}))
    assert "base torch 2.11.0, triton 3.6.0; head torch 2.13.0, triton 3.7.1" in shown


@pytest.mark.slow
def test_a_gate_of_two_environments_is_kept_apart(repository: Repository, environment: Path) -> None:
    arguments = ["-b", r"SmokeAttention.*\(128.*'forward', 'reference'", "--no-tests", "--budget", "1", "--keep"]
    done = gate(repository, "base", "--env", sys.executable, str(environment), *arguments)
    assert done.returncode in (0, 1, 2), done.stderr
    assert f"triton {OTHER}" in done.stdout
    (kept,) = (repository.folder / "perf" / "records").glob("*/environment/*.json")
    document = json.loads(kept.read_text())
    assert document["head_software"]["triton"] == OTHER
    assert len(document["judgement"]["verdicts"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["HEAD", "HEAD", "--env", ".", "."], "--env and HEAD were both given"),
        (["--env", "nowhere", "."], "'nowhere' does not exist"),
        pytest.param(["--env", ".", "."], "--env . was given; allowed:", marks=needs_checkout),
        pytest.param(
            ["--env", "/bin/true", "/bin/true", "--no-tests", "-b", ROWS], "did not start", marks=needs_checkout
        ),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of its own
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert message in done.stderr
