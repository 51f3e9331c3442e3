"""One visit to one case, inside a worker process: build, check, memory, warm up, sample. No asv in here."""

import hashlib
import importlib.util
import platform
import sys
import traceback
from pathlib import Path
from typing import Any

from perf.harness import ceilings, device
from perf.harness.case import Case
from perf.harness.clock import Clock, CudaClock, Stop, WallClock, visit
from perf.harness.memory import peak_allocated_bytes, release_memory
from perf.harness.records import best_ceilings
from perf.workloads import PACKAGE, build
from perf.workloads.workload import Floor, Unavailable, WrongResult


class Worker:
    """The state of one measuring process: its clock, its ceilings, the package it measures."""

    def __init__(self, device_kind: str, checkout: Path):
        self._device = device_kind
        self._package_digest = pin_package(checkout)
        self._missing = missing_device(device_kind)
        self._nvml: device.Nvml | None = None
        self._clock: Clock | None = None
        self._ceilings: dict[str, Any] = {}
        self._l2_bytes = 0
        self._usable = True

    def greeting(self) -> dict[str, Any]:
        """Who measures: device, software, ceilings, and what was imported."""
        if self._missing:
            return {"unavailable": self._missing}
        if self._device == "cpu":
            import torch

            torch.set_num_threads(1)  # on a busy machine a barrier between two threads waits for a time slice: 8 ms
        identity = device.identity(self._device)
        if self._device == "cuda":
            self._nvml = device.Nvml.open(identity["uuid"])
            self._l2_bytes = identity["l2_bytes"]
        self._clock = CudaClock() if self._device == "cuda" else WallClock()
        self._ceilings = ceilings.measure(self._clock)
        return {
            "machine": device.machine()["machine"],
            "device": identity,
            "software": device.software(),
            "ceilings": self._ceilings,
            "package_digest": self._package_digest,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Visit `request["case"]`; with `first`, also check its output and take its peak memory.

        `stop` overrides fields of `clock.Stop`; `ceilings` are the best rates that other processes saw.
        Never raises: whatever goes wrong is the visit's status and reason.
        """
        case = Case(**request["case"])
        stop = Stop(**request["stop"])
        self._ceilings = best_ceilings([self._ceilings, request["ceilings"]])
        release_memory()
        try:
            return {"status": "ok", "reason": "", **self._visit(case, stop, request["first"])}
        except Unavailable as reason:
            return {"status": "unavailable", "reason": str(reason)}
        except WrongResult as reason:
            return {"status": "wrong", "reason": str(reason)}
        except TooFast as reason:
            return {"status": "too_fast", "reason": str(reason)}
        except Exception as error:
            return self._failure(error)

    def usable(self) -> bool:
        """False after an error that leaves the CUDA context unusable: the next case needs a new process."""
        return self._usable

    def _visit(self, case: Case, stop: Stop, first: bool) -> dict[str, Any]:
        assert self._clock is not None
        work = build(case.workload, case.params, case.device)
        found: dict[str, Any] = {"clock": self._clock.name, "floor": vars(work.floor)}
        if first:
            work.prepare()
            work.run()
            found["error"] = work.check()
            if self._device == "cuda":
                del work
                found["peak_bytes"] = peak_allocated_bytes(lambda: build(case.workload, case.params, case.device))
                work = build(case.workload, case.params, case.device)
        found["state"] = self._clock.warm_up(work, self._nvml.state if self._nvml else None)
        samples = visit(self._clock, work, case.cache, stop)
        self._hold_to_floor(samples, case, work.floor)
        found["samples_ns"] = [round(sample * 1e9) for sample in samples]
        if throttled := found["state"].get("throttled"):
            return found | {"status": "throttled", "reason": f"the GPU was slowed down: {', '.join(throttled)}"}
        return found

    def _hold_to_floor(self, samples: list[float], case: Case, floor: Floor) -> None:
        try:
            hold_to_floor(min(samples), floor, self._ceilings, case.cache, self._l2_bytes)
        except TooFast:
            # The ceilings are the best rates seen; the device may have been slow whenever they were measured.
            assert self._clock is not None
            self._ceilings = best_ceilings([self._ceilings, ceilings.measure(self._clock)])
            hold_to_floor(min(samples), floor, self._ceilings, case.cache, self._l2_bytes)

    def _failure(self, error: Exception) -> dict[str, Any]:
        import torch

        traceback.print_exc()
        if isinstance(error, torch.OutOfMemoryError):
            error.__traceback__ = None  # it holds the frames, and they the tensors
            return {"status": "out_of_memory", "reason": one_line(error)}
        if self._device == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                self._usable = False
        return {"status": "error", "reason": f"{type(error).__name__}: {one_line(error)}"}


class TooFast(Exception):
    """A sample below what the hardware allows: the measurement is wrong, whatever the code did."""


def hold_to_floor(fastest_s: float, floor: Floor, measured_ceilings: dict[str, Any], cache: Any, l2_bytes: int) -> None:
    """Raise `TooFast` if `fastest_s` is less than this device can need for this much work."""
    least = ceilings.floor_s(floor, measured_ceilings, cache, l2_bytes)
    if fastest_s < least:
        raise TooFast(
            f"{fastest_s * 1e6:.2f} us is below the physical floor of {least * 1e6:.2f} us "
            f"({floor.flops:.3g} FLOPs, {floor.bytes_read + floor.bytes_written:.3g} bytes)"
        )


def pin_package(checkout: Path) -> str:
    """Make sure that importing the measured package gives the checkout's own, or nothing at all.

    Returns a digest of its sources, "" if the checkout has no such package. A copy from anywhere else (the working
    tree installed beside it, say) is made unimportable, so that its numbers can never pass for this commit's.
    """
    spec = importlib.util.find_spec(PACKAGE)
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin is None or not origin.is_relative_to(checkout.resolve()):
        sys.modules[PACKAGE] = None  # type: ignore[assignment]
        return ""
    return package_digest(origin.parent)


def package_digest(folder: Path) -> str:
    """sha256 over the names and bytes of a package's Python sources, first 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def missing_device(kind: str) -> str:
    """Why this machine cannot run cases of this kind, "" if it can."""
    import torch

    if kind == "cuda" and not torch.cuda.is_available():
        return f"needs a CUDA GPU; torch {torch.__version__} on Python {platform.python_version()} finds none"
    return ""


def one_line(error: BaseException) -> str:
    """The first line of an error's message, at most 300 characters."""
    return (str(error).strip().splitlines() or [""])[0][:300]
