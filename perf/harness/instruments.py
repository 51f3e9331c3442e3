"""What a process measures with: the clocks, the ceilings, the state and the memory of its device."""

import gc
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from perf.harness import ceilings, device
from perf.harness.case import Cache
from perf.harness.ceilings import require_floor
from perf.harness.clock import CPU_CLOCKS, Clock, no_garbage_collection
from perf.harness.cuda_clocks import CUDA_CLOCKS
from perf.harness.locked_clock import unlocked
from perf.harness.memory import Leftovers
from perf.harness.preflight import busy_or_broken_gpus
from perf.harness.records import best_ceilings
from perf.harness.status import failure
from perf.workloads.workload import Floor, Workload


class Instruments:
    """The instruments of one process, for whatever it measures: cases, pairs of commits, comparisons, studies."""

    def __init__(self, device_kind: str):
        self.device = device_kind
        self.nvml: device.Nvml | None = None
        self.leftovers = Leftovers()
        self.ceilings: dict[str, Any] = {}
        self.usable = True
        """False after an error that broke the CUDA context: what comes next needs a new process."""

        self._makers: dict[str, Callable[[], Clock]] = CPU_CLOCKS if device_kind == "cpu" else CUDA_CLOCKS
        self._clocks: dict[str, Clock] = {}
        self._l2_bytes = 0
        self._traced: set[str] = set()  # reasons of errors whose traceback was printed

    def open(self) -> dict[str, Any]:
        """Return the identity of the device, whose state can be read from now on."""
        identity = device.identity(self.device)
        if self.device == "cuda":
            self.nvml = device.Nvml.open(identity["uuid"])
            self._l2_bytes = identity["l2_bytes"]
        return identity

    def greeting(self, package_digest: str) -> dict[str, Any]:
        """Return device, software, ceilings and troubles, or why nothing can be measured, of a process that begins."""
        if missing := device.missing_device(self.device):
            return {"unavailable": missing}
        with no_garbage_collection():  # of torch's import nothing is garbage: a tenth of its time
            if self.device == "cpu":
                import torch

                torch.set_num_threads(1)  # on a busy machine a barrier between two threads waits for a time slice: 8 ms
            troubles = busy_or_broken_gpus() if self.device == "cuda" else []  # before this process uses a GPU
            identity = self.open()
            self.ceilings = ceilings.measure(self._any_clock())
            if self.nvml and (wrong_clock := unlocked(self.nvml.sm_mhz())):  # right after a load
                troubles.append(f"GPU 0 has its {wrong_clock}: nvidia-smi -lgc locks it")
            gc.collect()
            gc.freeze()  # later collections skip the objects of torch, which take 0.1 s each
        return {
            "machine": device.machine()["machine"],
            "device": identity,
            "software": device.software(),
            "ceilings": self.ceilings,
            "package_digest": package_digest,
            "troubles": troubles,
        }

    def clock(self, name: str) -> Clock:
        """Return the process's clock of this name."""
        if name not in self._clocks:
            self._clocks[name] = self.new_clock(name)
        return self._clocks[name]

    def new_clock(self, name: str) -> Clock:
        """Return a clock of its own for an arm. Raises `ValueError` for a clock that this device does not have."""
        if name not in self._makers:
            raise ValueError(f"clock={name!r} was given; allowed on {self.device}: {', '.join(self._makers)}")
        return self._makers[name]()

    def _any_clock(self) -> Clock:
        return self.clock(next(iter(self._makers)))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def merge_ceilings(self, others: dict[str, Any]) -> None:
        """Take the best ceilings of other processes as this one's too, and free what earlier work left behind."""
        self.ceilings = best_ceilings([self.ceilings, others])
        self.leftovers.release()

    def measure_ceilings(self) -> dict[str, Any]:
        """Measure the rates of `ceilings.measure`, once a process, in 3 GiB of a GPU, and return them.

        To be called before its memory is full, or after a first call that is timed.
        """
        if not self.ceilings:
            self.leftovers.release()
            self.ceilings = ceilings.measure(self._any_clock())
            self.leftovers.release()
        return self.ceilings

    def require_above_floor(self, samples_s: list[float], to: Workload | Floor, cache: Cache) -> None:
        """Raise `TooFast` for a sample below the floor, after measuring the violated ceilings again.

        The device may have been slow when they were measured. Later samples use the higher ceilings too. Of a
        difference of two times there is no floor.
        """
        floor = to.floor if isinstance(to, Workload) else to
        is_difference = isinstance(to, Workload) and to.without is not None
        if not samples_s or is_difference or not (floor.flops or floor.launches or cache == "cold"):
            return
        self.measure_ceilings()
        slack = ceilings.SLACK if self.device == "cuda" else ceilings.CPU_SLACK
        fastest_s = min(samples_s)
        for rest_s in ceilings.RESTS_S:
            kinds = ceilings.undercut(fastest_s, floor, self.ceilings, cache, self._l2_bytes, slack)
            if not kinds:
                return
            time.sleep(rest_s)
            if not self._measure_again(kinds):
                break
        require_floor(fastest_s, floor, self.ceilings, cache, self._l2_bytes, slack)

    def _measure_again(self, kinds: set[str]) -> bool:
        """Measure the ceilings of these kinds again and keep the better ones; return False if memory is short."""
        import torch

        try:
            measured = ceilings.measure(self._any_clock(), kinds)
        except torch.OutOfMemoryError:  # the work's own tensors are still allocated
            print("no memory to measure the ceilings again", file=sys.stderr)
            return False
        self.ceilings = best_ceilings([self.ceilings, measured])
        return True

    def with_status(self, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of `do` with status and reason; an error becomes the status and reason."""
        try:
            return {"status": "ok", "reason": "", **do()}
        except (Exception, SystemExit) as error:  # the measured code may call sys.exit
            return self._failure(error)

    def _failure(self, error: BaseException) -> dict[str, Any]:
        reply = failure(error)
        if reply["status"] == "error":
            if reply["reason"] not in self._traced:
                traceback.print_exception(error)
            self._traced.add(reply["reason"])
            try:
                self.synchronize()
            except RuntimeError:
                self.usable = False
        return reply
