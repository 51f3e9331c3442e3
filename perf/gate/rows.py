"""Which rows a gate measures."""

import random
from collections.abc import Iterable

from perf.gate import identical
from perf.gate.evidence import Evidence
from perf.harness import device
from perf.harness.case import Case
from perf.harness.suite import cases_of, is_selected
from perf.selection import asv_classes, is_control

ALWAYS = r"^(controls\.Controls|smoke\.SmokeControls)\."
"""Controls of every gate: whatever they show came from the machine. Others come along where they are selected."""

DRAWN = 0.05


def rows(pattern: str, gpus: int | None = None) -> list[Evidence]:
    """One for each case that `pattern` selects as asv does, and one for each control of their devices in `ALWAYS`.

    With `gpus`, of the cases on several GPUs those on so many: they use all that the gate was given. Each has the
    margin that identical code has shown on this machine.
    """
    margins = identical.margins(identical.sittings(device.machine()["machine"]))
    found: list[Evidence] = []
    controls: list[Evidence] = []
    for name, cls, _ in asv_classes():
        if cls is None:
            continue
        benchmark = cls()
        mine, patterns = (controls, [pattern, ALWAYS]) if is_control(name) else (found, [pattern])
        for case in cases_of(benchmark):
            if is_selected(case, benchmark, patterns) and _uses_all(case, gpus):
                mine.append(Evidence(case, benchmark.negligible, is_control(name), margin=margins.get(case.key)))
    devices = {one.case.device for one in found}
    return found + [one for one in controls if one.case.device in devices]


def every_row() -> list[Evidence]:
    """All cases of all classes, controls included, without margins."""
    return [
        Evidence(case, benchmark.negligible, is_control(name))
        for name, cls, _ in asv_classes()
        if cls is not None
        for benchmark in (cls(),)
        for case in cases_of(benchmark)
    ]


def draw(evidence: Iterable[Evidence], seed: str) -> None:
    """Mark one row in twenty to be measured in all processes: what SAME after fewer is worth, only that can tell."""
    chance = random.Random(seed)
    for one in evidence:
        one.is_drawn = chance.random() < DRAWN and not one.is_control


def _uses_all(case: Case, gpus: int | None) -> bool:
    return gpus is None or case.device != "cuda" or case.params.get("world_size", gpus) == gpus
