"""Select the cases that a gate measures."""

import random
from collections.abc import Iterable

from perf.gate import aa_runs
from perf.gate.evidence import Evidence
from perf.harness import device
from perf.harness.case import Case
from perf.harness.suite import cases_of, is_selected
from perf.selection import is_control, sound_classes

ALWAYS = r"^(controls\.Controls|smoke\.SmokeControls)\."
"""Controls of every gate: their code is the same in both arms. Other controls are measured if they are selected."""

DRAWN_SHARE = 0.05


def rows(pattern: str, gpus: int | None = None) -> list[Evidence]:
    """Return empty evidence for each case that `pattern` selects, and for each control in `ALWAYS`.

    With `gpus`, multi-GPU cases are limited to those on that many. Each case carries its margin on this machine.
    """
    margins = aa_runs.margins(aa_runs.recorded(device.machine()["machine"]))
    selected: list[Evidence] = []
    controls: list[Evidence] = []
    for name, cls in sound_classes():
        benchmark = cls()
        group, patterns = (controls, [pattern, ALWAYS]) if is_control(name) else (selected, [pattern])
        for case in cases_of(benchmark):
            if is_selected(case, benchmark, patterns) and _uses_all(case, gpus):
                group.append(Evidence(case, benchmark.negligible, is_control(name), margin=margins.get(case.key)))
    devices = {row.case.device for row in selected}
    return selected + [row for row in controls if row.case.device in devices]


def every_row() -> list[Evidence]:
    """Return empty evidence for all cases of all classes, controls included, without margins."""
    return [
        Evidence(case, benchmark.negligible, is_control(name))
        for name, cls in sound_classes()
        for benchmark in (cls(),)
        for case in cases_of(benchmark)
    ]


def draw(evidence: Iterable[Evidence], seed: str) -> None:
    """Mark 5 % of the rows to be measured in all processes, which checks how often an early SAME is right."""
    chance = random.Random(seed)
    for row in evidence:
        row.is_drawn = chance.random() < DRAWN_SHARE and not row.is_control


def _uses_all(case: Case, gpus: int | None) -> bool:
    return gpus is None or case.device != "cuda" or case.params.get("world_size", gpus) == gpus
