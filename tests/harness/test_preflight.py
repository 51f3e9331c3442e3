"""The preflight refuses a measurement before it begins, in one line."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch

from perf.commands import doctor
from perf.gate import compare
from perf.gate.evidence import Arm, Evidence
from perf.gate.measuring import Measuring
from perf.harness import preflight, supervisor
from perf.harness.case import Case
from perf.harness.worker_process import WorkerProcess

CASE = Case("smoke.SmokeControls", "controls", {"control": "launch"}, "cpu", "wall", "warm")


class Driver:
    """Stands in for pynvml, which needs an NVIDIA driver."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_SUCCESS = range(4)

    class NVMLError(Exception):
        pass

    def __init__(self, pids: list[int], ecc: int | None = 0, action: int | None = 0):
        self.pids, self.ecc, self.action = pids, ecc, action

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetTotalEccErrors(self, handle: str, *kind: int) -> int:  # noqa: N802
        if self.ecc is None:
            raise self.NVMLError
        return self.ecc

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:  # noqa: N802
        status = self.NVML_SUCCESS if self.action is not None else 99
        return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=self.action))]


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(preflight.VARIABLE)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says what the driver of the one GPU answers."""

    def install(*arguments: Any) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", Driver(*arguments))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="1"))

    doctor._gpu_uuid.cache_clear()
    yield install
    doctor._gpu_uuid.cache_clear()


WAIT = "print(flush=True); input()"


def waiting(*arguments: str) -> "subprocess.Popen[bytes]":
    """A Python process that waits for a line; it has its command line by then."""
    process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def test_nothing_is_said_of_a_gpu_that_is_ours_and_sound(driver: Any) -> None:
    driver([os.getpid()])
    assert preflight.busy_or_broken_gpus() == []
    assert doctor._trouble() == doctor.Check("none")


def test_who_started_this_process_is_no_trouble(driver: Any) -> None:
    driver([os.getppid()])
    assert preflight.busy_or_broken_gpus() == []


def test_a_gate_refuses_before_it_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[tuple[str, ...]] = []

    def answer(command: list[str], **_: Any) -> Any:
        answers.append(tuple(command[1:]))
        return SimpleNamespace(stdout="process 7 uses GPU 0: stop it first\n")

    monkeypatch.setattr(subprocess, "run", answer)
    monkeypatch.setattr(compare.acceptance, "between", lambda *arms: [])
    arm = Arm("a" * 40, "A commit")
    on_gpu = Evidence(dataclasses.replace(CASE, device="cuda"), (0.1, 0.0), False)
    with pytest.raises(click.ClickException, match="process 7"):
        compare.compare((arm, arm), (tmp_path, tmp_path), [on_gpu], budget_s=1, tests=True, every_row=True, command="")
    assert answers == [("-m", "perf.harness.preflight")], "and no test"


def test_asked_apart_it_answers_what_this_machine_has() -> None:
    assert torch.cuda.is_available() or preflight.asked_apart() == []


def test_what_this_gpu_or_driver_cannot_tell_is_no_trouble(driver: Any) -> None:
    driver([], None, None)
    assert preflight.busy_or_broken_gpus() == []


def test_others_on_the_gpu_are_named(driver: Any) -> None:
    other = waiting("-c", WAIT, "train the net")
    try:
        driver([os.getpid(), other.pid])
        (reason,) = preflight.busy_or_broken_gpus()
        assert reason.startswith(f"process {other.pid} ({Path(sys.executable).name} -c ")
        assert " train the net) " in reason and "GPU 0" in reason
        assert doctor._trouble().found == reason
    finally:
        other.communicate(b"\n")


def test_a_long_command_is_known_by_its_program_and_its_end(driver: Any, tmp_path: Path) -> None:
    script = tmp_path / ("a folder" * 20) / "train.py"
    script.parent.mkdir()
    script.write_text(WAIT)
    other = waiting(str(script), "--lr", "0.1")
    try:
        driver([other.pid])
        (reason,) = preflight.busy_or_broken_gpus()
        assert reason.startswith(f"process {other.pid} ({Path(sys.executable).name} ")
        assert "/train.py --lr 0.1) " in reason and "GPU 0" in reason
        assert len(reason) < 200
    finally:
        other.communicate(b"\n")


def test_a_rank_that_was_left_behind_is_known_as_one(driver: Any, tmp_path: Path) -> None:
    script = tmp_path / preflight.WORKERS / "rank.py"
    script.parent.mkdir(parents=True)
    script.write_text(WAIT)
    rank = waiting(str(script))
    try:
        driver([rank.pid])
        (reason,) = preflight.busy_or_broken_gpus()
        assert "left behind" in reason
        assert "/rank.py)" in reason
    finally:
        rank.communicate(b"\n")


def test_a_process_of_another_container_has_its_number_only(driver: Any) -> None:
    driver([2**22 + 1])  # above the kernel's largest
    (reason,) = preflight.busy_or_broken_gpus()
    assert reason.startswith(f"process {2**22 + 1} ") and "(" not in reason


@pytest.mark.parametrize(("ecc", "action", "named"), [(3, 0, "3 memory errors"), (0, 1, "Xid")])
def test_a_gpu_that_is_broken_is_told(driver: Any, ecc: int, action: int, named: str) -> None:
    driver([], ecc, action)
    (reason,) = preflight.busy_or_broken_gpus()
    assert reason.startswith("GPU 0 ") and named in reason


def test_an_objection_is_one_line_and_can_be_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.objection([]) == ""
    line = preflight.objection(["a", "b"])
    assert "a; b" in line and "PERF_PREFLIGHT=off" in line
    monkeypatch.setenv(preflight.VARIABLE, "off")
    assert preflight.objection(["a", "b"]) == ""


def test_a_full_disk_stops_a_run_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerProcess, "start", lambda self: {"troubles": []})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**29))
    folder = tmp_path / "not" / "there" / "yet"
    with pytest.raises(SystemExit, match=f"^perf: .*512 MiB .*{folder}"):
        supervisor.measure([CASE], commit="c" * 40, checkout=tmp_path, records=folder)
    assert not folder.exists()


def test_trouble_on_the_gpu_stops_a_gate_and_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greeting = {"ceilings": {}, "troubles": ["process 7 uses GPU 0: stop it first"], "device": {"name": "H200"}}
    monkeypatch.setattr(WorkerProcess, "start", lambda self: greeting)
    gate = Measuring(
        [Evidence(CASE, (0.1, 0.0), False)], (tmp_path, tmp_path), budget_s=60, looks=[1], is_open=lambda rows: []
    )
    with pytest.raises(click.ClickException, match="process 7"):
        gate.until_settled()
    with pytest.raises(SystemExit, match=r"^perf: .*process 7"):
        supervisor.measure([CASE], commit="c" * 40, checkout=tmp_path, records=tmp_path)
