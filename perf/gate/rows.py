"""Which rows a gate measures."""

from perf.gate.evidence import Evidence
from perf.harness.case import Case
from perf.harness.suite import cases_of, is_selected
from perf.selection import asv_classes

CONTROLS = {"cuda": "controls.Controls", "cpu": "smoke.SmokeControls"}
"""Classes whose work runs no project code: whatever they show came from the machine. Always among the rows."""


def rows(pattern: str, gpus: int | None = None) -> list[Evidence]:
    """One for each case that `pattern` selects as asv does, and one for each control of their devices.

    With `gpus`, of the cases on several GPUs those on so many: they use all that the gate was given.
    """
    found, controls = [], []
    for name, cls, _ in asv_classes():
        if cls is None:
            continue
        benchmark = cls()
        is_control = name in CONTROLS.values()
        for case in cases_of(benchmark):
            one = Evidence(case, benchmark.negligible, is_control)
            if is_control:
                controls.append(one)
            elif is_selected(case, benchmark, [pattern]) and _uses_all(case, gpus):
                found.append(one)
    devices = {one.case.device for one in found}
    return found + [one for one in controls if one.case.device in devices]


def _uses_all(case: Case, gpus: int | None) -> bool:
    return gpus is None or case.device != "cuda" or case.params.get("world_size", gpus) == gpus
