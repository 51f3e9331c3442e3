"""Which device this is, and in which state it is while it works."""

import os
import platform
import re
from pathlib import Path
from typing import Any

from perf.harness.locked_clock import locked_mhz, unlocked

# NVML's clock event reasons under which a sample does not count: the hardware slowed itself down for heat or supply.
# The software power cap (0x4) is not among them: it is where an H200 lives during a large matmul.
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


# NVML's recovery actions: what the driver wants done after an Xid, by number.
RECOVERY = {1: "reset the GPU", 2: "reboot the machine", 3: "drain the NVLink peers", 4: "drain and reset the GPU"}


def machine() -> dict[str, str]:
    """asv's description of this machine, from values that never change on it.

    Every value here is part of a series' identity, so nothing that moves (RAM, kernel, host name, driver) is in it.
    A locked clock is: times of both kinds never make one series.
    """
    import torch

    if torch.cuda.is_available():
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


def identity(device: str) -> dict[str, Any]:
    """The device as a record names it; `device` is "cuda" or "cpu"."""
    if device == "cpu":
        import torch

        return {"name": _cpu_model(), "threads": torch.get_num_threads()}
    import torch

    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }
    nvml = Nvml.open(found["uuid"])
    return found | (nvml.constants() if nvml else {})


def software() -> dict[str, str]:
    """Versions of everything that can move a number."""
    import torch

    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        pass
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())
        if torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


class Nvml:
    """The driver's view of one GPU."""

    def __init__(self, library: Any, handle: Any):
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, uuid: str) -> "Nvml | None":
        """The GPU of this UUID (torch's order of devices is not NVML's), or None where NVML does not answer."""
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
        """Driver and limits."""
        return {
            "driver": self._library.nvmlSystemGetDriverVersion(),
            "power_limit_w": self._library.nvmlDeviceGetEnforcedPowerLimit(self._handle) // 1000,
            "max_sm_mhz": self._library.nvmlDeviceGetMaxClockInfo(self._handle, self._library.NVML_CLOCK_SM),
        }

    def state(self) -> dict[str, Any]:
        """Clocks, power, temperature and the reasons for the clocks, now."""
        library, handle = self._library, self._handle
        return {
            "sm_mhz": self.sm_mhz(),
            "memory_mhz": library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM),
            "power_w": library.nvmlDeviceGetPowerUsage(handle) // 1000,
            "temperature_c": library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU),
            "clock_reasons": library.nvmlDeviceGetCurrentClocksEventReasons(handle),
        }

    def sm_mhz(self) -> int:
        """The SMs' clock, now."""
        return self._library.nvmlDeviceGetClockInfo(self._handle, self._library.NVML_CLOCK_SM)

    def throttling(self) -> list[str]:
        """Why the device is slow just now, or not at its locked clock; nothing if it is not. Takes 0.1 ms."""
        reasons = self._library.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        found = [text for bit, text in THROTTLED.items() if reasons & bit]
        if locked_mhz() and (wrong := unlocked(self.sm_mhz())):
            found.append(wrong)
        return found

    def others(self) -> list[int]:
        """Process IDs of what else computes on it."""
        try:
            running = self._library.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._library.NVMLError:  # not for everybody to know
            return []
        return sorted(process.pid for process in running if process.pid != os.getpid())

    def damages(self) -> list[str]:
        """What the driver holds against it since it was loaded; what this GPU or driver cannot tell is left out."""
        library, handle = self._library, self._handle
        found = []
        try:
            uncorrected = library.nvmlDeviceGetTotalEccErrors(
                handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
            )
            if uncorrected:
                found.append(f"had {uncorrected} memory errors that ECC could not correct: reset it")
        except library.NVMLError:
            pass
        try:
            (field,) = library.nvmlDeviceGetFieldValues(handle, [library.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
            if field.nvmlReturn == library.NVML_SUCCESS and field.value.uiVal in RECOVERY:
                found.append(f"had an error (Xid) after which the driver asks to {RECOVERY[field.value.uiVal]}")
        except (library.NVMLError, AttributeError):  # older drivers, older bindings
            pass
        return found


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"model name\s*:\s*(.+)", info.read_text())
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
