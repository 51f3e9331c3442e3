"""Noise of identical code on record: the log changes of visits that the simulation draws from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perf.gate import aa_runs, inference, prior
from perf.gate.evidence import DEVICE_CLOCKS
from perf.gate.measuring import VISITS
from perf.gate.rows import every_row
from perf.gate.variance import Floats
from perf.selection import asv_classes

NOISE_STUDY = Path(__file__).parents[1] / "studies" / "results" / "nvidia-h200" / "noise.json"
ANOTHER_DAY = Path(__file__).with_suffix(".json")

MACHINE = "nvidia-h200"
"""Machine whose A/A runs on record are drawn from."""

CLASSES = {"matmul": "controls.Controls", "attention forward": "attention.FlashAttention"}
"""Benchmark class that gives its floor to cases recorded before there were classes, by the start of their name."""


@dataclass(frozen=True)
class Noise:
    """Log changes of identical code, [kind, process, visit]."""

    kinds: tuple[str, ...]
    base_s: Floats
    changes: Floats
    clocks: npt.NDArray[Any]
    """Clock of each kind; kinds of different clocks share no prior."""

    negligible: Floats
    """Negligible log ratio of each kind's class."""

    moved: Floats
    """Maximum log ratio by which identical code of the kind moved; infinite if the class's margin applies."""

    def floors(self, known: float = 0.0) -> Floats:
        """Return the gate's floors as log ratios, for identical code that moved by `known` more."""
        return np.minimum(self.negligible, np.log1p(aa_runs.margin(np.expm1(self.moved + known))))

    @property
    def process_sd(self) -> Floats:
        """Standard deviation of the process means of each kind."""
        return self.changes.mean(-1).std(-1, ddof=1)

    @property
    def visit_sd(self) -> Floats:
        """Standard deviation within processes of each kind."""
        return self.changes.std(-1, ddof=1).mean(-1)


def noise_study() -> Noise:
    """Read the noise study's crossed design, which the rules were tuned on: 10 cases, 4 processes of 18 visits."""
    cases: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in json.loads(NOISE_STUDY.read_text())["rows"]:
        if row["design"] == "crossed":
            cases.setdefault(row["case"], {}).setdefault(row["process"], []).append(row)
    return _without_classes(
        tuple(cases),
        np.array([np.median([v["a"] for visits in case.values() for v in visits]) for case in cases.values()]),
        np.array([[[np.log(v["b"] / v["a"]) for v in visits] for visits in case.values()] for case in cases.values()]),
    )


def another_day() -> Noise:
    """Read four cases, 5 processes of 18 visits, recorded on another day by another script."""
    paired = json.loads(ANOTHER_DAY.read_text())["paired"]
    return _without_classes(
        tuple(paired),
        np.array([case["median_s"] for case in paired.values()]),
        np.array([case["changes"] for case in paired.values()]),
    )


def _without_classes(kinds: tuple[str, ...], base_s: Floats, changes: Floats) -> Noise:
    """Complete cases recorded before there were classes; their margins use the first processes alone."""
    deployed = {name: cls.negligible for name, cls, _ in asv_classes() if cls is not None}
    classes = [next((of for start, of in CLASSES.items() if kind.startswith(start)), kind) for kind in kinds]
    host_bound = np.array(["gpu_wall" in kind for kind in kinds])
    return Noise(
        kinds,
        base_s,
        changes,
        host_bound,
        np.array(
            [inference.floor_of(deployed[of.partition("(")[0]], s) for of, s in zip(classes, base_s, strict=True)]
        ),
        np.array(
            [
                aa_runs.max_change(processes[: aa_runs.MIN_PROCESSES].mean(-1).tolist())
                if s >= aa_runs.MIN_BASE_S and not on_host
                else np.inf
                for processes, s, on_host in zip(changes, base_s, host_bound, strict=True)
            ]
        ),
    )


def on_file() -> Noise | None:
    """Read each case's newest A/A run on record, with the margin from the older runs.

    Returns None for fewer cases than a prior needs.
    """
    rows = {row.case.key: row for row in every_row()}
    recorded: dict[str, tuple[float, Floats, float]] = {}
    runs = aa_runs.recorded(MACHINE)
    for number, run in enumerate(runs):
        moved = aa_runs.moved(runs[:number])
        for key in run.base_s.keys() & rows.keys():
            processes = [np.resize(visits, VISITS) for visits in run.processes(key) if len(visits) > VISITS // 2]
            if len(processes) >= aa_runs.MIN_PROCESSES:
                recorded[key] = run.base_s[key], np.array(processes), moved.get(key, np.inf)
    if len(recorded) < prior.MIN_ROWS:
        return None
    kinds = tuple(sorted(recorded))
    base_s = np.array([recorded[key][0] for key in kinds])
    most = max(len(recorded[key][1]) for key in kinds)
    clocks = np.array([rows[key].case.clock for key in kinds])
    has_margin = np.isin(clocks, DEVICE_CLOCKS) & (base_s >= aa_runs.MIN_BASE_S)
    return Noise(
        kinds,
        base_s,
        np.array([np.resize(recorded[key][1], (most, VISITS)) for key in kinds]),
        clocks,
        np.array([inference.floor_of(rows[key].negligible, s) for key, s in zip(kinds, base_s, strict=True)]),
        np.where(has_margin, [recorded[key][2] for key in kinds], np.inf),
    )
