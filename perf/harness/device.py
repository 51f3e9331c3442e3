"""Identity of the machine and its device, and the device's state under load."""

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from perf.harness.locked_clock import locked_mhz, unlocked

# NVML's clock event reasons that invalidate a sample: the hardware throttles for temperature or power supply.
# The software power cap (0x4) is not among them, because a large matmul always runs at it on an H200.
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


# NVML's recovery actions, which the driver requests after an Xid, by number.
RECOVERY = {1: "reset the GPU", 2: "reboot the machine", 3: "drain the NVLink peers", 4: "drain and reset the GPU"}


def machine() -> dict[str, str]:
    """Return asv's description of this machine, from values that never change on it.

    Every value is part of a series' identity, so RAM, kernel, host name and driver are left out. A locked clock is part
    of the name: times with and without it never share a series.
    """
    if sees_gpus():
        import torch

        gpu, count = torch.cuda.get_device_name(), torch.cuda.device_count()
        name = _slug(gpu) + (f"-x{count}" if count > 1 else "") + (f"-{mhz}mhz" if (mhz := locked_mhz()) else "")
        identity = {"gpu": gpu, "num_gpu": str(count), "cpu": ""}
    else:
        cpu = _cpu_model()
        name = "cpu-" + _slug(cpu)
        identity = {"gpu": "", "num_gpu": "0", "cpu": cpu}
    return {
        "machine": name,
        **identity,
        "os": platform.system(),
        "arch": platform.machine(),
        "num_cpu": "",
        "ram": "",
    }


def sees_gpus() -> bool:
    """Return whether torch finds a GPU. A torch that was built for none is not imported to ask it, which takes 3 s."""
    if "torch" not in sys.modules and (build := _torch_build()) and not (build.get("cuda") or build.get("hip")):
        return False
    import torch

    return torch.cuda.is_available()


def missing_device(kind: str) -> str:
    """Return the reason why this machine cannot run cases of this kind of device; "" if it can."""
    if kind == "cuda" and not sees_gpus():
        return "needs a CUDA GPU; torch {torch} on Python {python} finds none".format(**software())
    return ""


@functools.cache
def _torch_build() -> dict[str, Any]:
    """Return the version of the installed torch and of what it was built for, from the file of torch that says it."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    return runpy.run_path(str(file)) if file and file.exists() else {}


def identity(device: str) -> dict[str, Any]:
    """Return the device's description for a record; `device` is "cuda" or "cpu"."""
    if device == "cpu":
        import torch

        return {"name": _cpu_model(), "threads": torch.get_num_threads()}
    import torch

    properties = torch.cuda.get_device_properties(0)
    gpu: dict[str, Any] = {
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }
    nvml = Nvml.open(gpu["uuid"])
    return gpu | (nvml.constants() if nvml else {})


def software() -> dict[str, str]:
    """Return the versions of all software that can change a time."""
    on_gpu = sees_gpus()
    if "torch" in sys.modules or not (version := _torch_build().get("__version__")):
        import torch

        version = torch.__version__
    versions = {"python": platform.python_version(), "torch": str(version)}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        pass
    if on_gpu:
        import torch

        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(torch.backends.cudnn.version())
        if torch.distributed.is_nccl_available():
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


def installed(package: str) -> str:
    """Return the version of an installed package, which is not imported; "" without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


class Nvml:
    """The NVML handle of one GPU."""

    def __init__(self, library: Any, handle: Any):
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, uuid: str) -> "Nvml | None":
        """Open the GPU of this UUID (torch orders devices differently); None if NVML is unavailable."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            return None

    def constants(self) -> dict[str, Any]:
        """Return the driver's version and the GPU's limits."""
        return {
            "driver": self._library.nvmlSystemGetDriverVersion(),
            "power_limit_w": self._library.nvmlDeviceGetEnforcedPowerLimit(self._handle) // 1000,
            "max_sm_mhz": self._library.nvmlDeviceGetMaxClockInfo(self._handle, self._library.NVML_CLOCK_SM),
        }

    def state(self) -> dict[str, Any]:
        """Read clocks, power, temperature and the reasons for the clocks."""
        library, handle = self._library, self._handle
        return {
            "sm_mhz": self.sm_mhz(),
            "memory_mhz": library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM),
            "power_w": library.nvmlDeviceGetPowerUsage(handle) // 1000,
            "temperature_c": library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU),
            "clock_reasons": library.nvmlDeviceGetCurrentClocksEventReasons(handle),
        }

    def sm_mhz(self) -> int:
        """Read the current clock of the SMs."""
        return self._library.nvmlDeviceGetClockInfo(self._handle, self._library.NVML_CLOCK_SM)

    def throttling(self) -> list[str]:
        """Return the current reasons for throttling, a wrong locked clock among them. Takes 0.1 ms."""
        bits = self._library.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        reasons = [text for bit, text in THROTTLED.items() if bits & bit]
        if locked_mhz() and (wrong_clock := unlocked(self.sm_mhz())):
            reasons.append(wrong_clock)
        return reasons

    def others(self) -> list[int]:
        """Return the IDs of other processes that compute on the GPU."""
        try:
            running = self._library.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._library.NVMLError:  # some users may not list processes
            return []
        return sorted(process.pid for process in running if process.pid != os.getpid())

    def damages(self) -> list[str]:
        """Return errors since the driver was loaded; queries that this GPU or driver lacks are left out."""
        library, handle = self._library, self._handle
        damages = []
        try:
            uncorrected = library.nvmlDeviceGetTotalEccErrors(
                handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
            )
            if uncorrected:
                damages.append(f"had {uncorrected} memory errors that ECC could not correct: reset it")
        except library.NVMLError:
            pass
        try:
            (field,) = library.nvmlDeviceGetFieldValues(handle, [library.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
            if field.nvmlReturn == library.NVML_SUCCESS and field.value.uiVal in RECOVERY:
                damages.append(f"had an error (Xid) after which the driver asks to {RECOVERY[field.value.uiVal]}")
        except (library.NVMLError, AttributeError):  # older drivers, older bindings
            pass
        return damages


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"model name\s*:\s*(.+)", info.read_text())
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
