"""A GPU with a locked clock is a machine of its own, measured at that clock or not at all."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perf.harness import device, instruments, locked_clock
from perf.harness.device import Nvml
from perf.harness.instruments import Instruments

HANDLE = "a GPU"
ROOT = Path(__file__).parents[2]


class Driver:
    """Stands in for pynvml, which needs an NVIDIA driver."""

    NVML_CLOCK_SM = 1

    def __init__(self, sm_mhz: int, reasons: int = 0):
        self.sm_mhz, self.reasons = sm_mhz, reasons

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802 - NVML's name
        return self.sm_mhz

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        return self.reasons


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locked_clock.VARIABLE, "1500")


@pytest.mark.parametrize(("count", "name"), [(1, "nvidia-h200-1500mhz"), (2, "nvidia-h200-x2-1500mhz")])
def test_a_locked_clock_makes_another_machine(locked: None, monkeypatch: Any, count: int, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert device.machine()["machine"] == name
    monkeypatch.delenv(locked_clock.VARIABLE)
    assert "mhz" not in device.machine()["machine"]


def test_samples_at_another_clock_do_not_count(locked: None) -> None:
    (wrong,) = Nvml(Driver(1410), HANDLE).throttling()
    assert "1410" in wrong and "1500" in wrong
    assert Nvml(Driver(1410, 0x80), HANDLE).throttling() == ["power brake", wrong]
    assert Nvml(Driver(1500), HANDLE).throttling() == []
    assert Nvml(Driver(1515), HANDLE).throttling() == [], "the nearest step"


def test_an_unlocked_clock_may_be_any() -> None:
    assert Nvml(Driver(1410), HANDLE).throttling() == []


@pytest.mark.parametrize("sm_mhz", [1980, 1500])
def test_nothing_is_measured_at_another_clock(locked: None, monkeypatch: Any, sm_mhz: int) -> None:
    gpu = SimpleNamespace(sm_mhz=lambda: sm_mhz)
    monkeypatch.setattr(device, "missing_device", lambda kind: "")
    monkeypatch.setattr(instruments, "busy_or_broken_gpus", list)
    monkeypatch.setattr(device, "identity", lambda kind: {"uuid": "1", "l2_bytes": 0})
    monkeypatch.setattr(device.Nvml, "open", lambda uuid: gpu)
    monkeypatch.setattr(instruments.ceilings, "measure", lambda clock: {})
    monkeypatch.setattr(Instruments, "clock", lambda own, name: None)
    troubles = Instruments("cuda").greeting("")["troubles"]
    assert len(troubles) == (sm_mhz == 1980)
    assert all("1980" in trouble and "1500" in trouble for trouble in troubles)


def test_what_is_no_clock_is_one_line(monkeypatch: Any) -> None:
    monkeypatch.setenv(locked_clock.VARIABLE, "1.5 GHz")
    with pytest.raises(SystemExit, match=r"^perf: PERF_LOCKED_MHZ='1.5 GHz'"):
        locked_clock.locked_mhz()
