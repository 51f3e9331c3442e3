"""Two measuring processes in turn, one for each arm: for what no process can hold together, as two versions of torch.

Coarser than one process with both (`pair`): a stay of twenty samples takes the place of one, and what a process decides
for itself stays in the difference until several processes have been seen.
"""

from pathlib import Path
from typing import Any

from perf.harness.case import ARMS
from perf.harness.comparison import paired
from perf.harness.records import best_ceilings
from perf.harness.worker_process import WorkerProcess

STAY = {"min_samples": 20, "max_samples": 20, "max_seconds": 0.125}
"""Fields of `clock.Stop`: an arm's samples in a row, two stays a visit."""


class AlternatingProcesses:
    """Used like one `WorkerProcess` of two checkouts, with the same replies; it plants no slow-downs."""

    def __init__(self, device: str, checkouts: tuple[Path, Path], pythons: tuple[str, str]):
        self._processes = {
            arm: WorkerProcess(device, checkout, python=python)
            for arm, checkout, python in zip(ARMS, checkouts, pythons, strict=True)
        }

    def start(self) -> dict[str, Any]:
        """Start both; base's greeting with the software of head as `head_software`, or why an arm can measure nothing.

        Trouble on the GPU is what base saw: to head, base is a stranger there.
        """
        base, head = (process.start() for process in self._processes.values())
        for arm, greeting in zip(ARMS, (base, head), strict=True):
            if reason := greeting.get("unavailable"):
                return {"unavailable": f"{arm}: {reason}"}
        return base | {
            "ceilings": best_ceilings([base["ceilings"], head["ceilings"]]),
            "head_software": head["software"],
        }

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """A visit: with `first` each arm alone, for what it gives only once; then A B B A, `STAY` at a time."""
        if request.get("injection"):
            raise ValueError("injection was given; allowed: one process with both arms")
        case, arms = request["case"], request["arms"]
        common = {"case": case, "ceilings": request["ceilings"]}
        reply: dict[str, Any] = {arm: {"status": "ok", "reason": ""} for arm in arms}
        for arm in arms if request["first"] else ():
            reply[arm] = self._processes[arm].ask(common | {"first": True, "stop": STAY}, limit_s)
            if reply[arm]["status"] in ("crashed", "hung"):
                return reply[arm]
        if not case["timed"] or any(reply[arm]["status"] != "ok" for arm in arms):
            return reply | {"status": "ok", "reason": ""}
        stays: dict[str, list[list[int]]] = {arm: [] for arm in arms}
        throttled = 0
        for arm in (*arms, *reversed(arms)):
            found = self._processes[arm].ask(common | {"first": False, "stop": STAY}, limit_s)
            if found["status"] != "ok":
                reason = f"{arm}: {found['reason']}" if len(arms) > 1 else found["reason"]
                return reply | {"status": found["status"], "reason": reason}
            slow = set(found.get("throttled", ()))
            throttled += len(slow)
            stays[arm].append([ns for index, ns in enumerate(found["samples_ns"]) if index not in slow])
        pairs = paired(stays) if len(arms) > 1 else {}
        return reply | {"status": "ok", "reason": "", "throttled": throttled} | pairs

    def alive(self) -> bool:
        """Whether both can be asked again."""
        return all(process.alive() for process in self._processes.values())

    def stop(self) -> None:
        """End both."""
        for process in self._processes.values():
            process.stop()
