"""Rows of the training step page: one per model, its phases side by side."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perf.harness.records import CaseResult
from perf.site.estimate import Estimate, estimate, shortest
from perf.site.newest import NewestCell
from perf.workloads import measured
from perf.workloads.transformer import MODES
from perf.workloads.transformer_oracle import BATCH, SIZES
from perf.workloads.workload import Unavailable

PHASES = "transformer.Transformer"
VARIANTS = ("transformer.TransformerVariants", "transformer.TransformerCompiled")


def utilization(result: CaseResult, flops_per_s: float) -> float | None:
    """Model FLOPs utilization against the fastest matmul on the device. Half precision only."""
    ceiling = result.session.ceilings.get("matmul_flops_per_s", {}).get(result.matmul_dtype)
    return flops_per_s / ceiling if ceiling and result.matmul_dtype != "float32" else None


@dataclass(frozen=True)
class Phases:
    """One model in one precision, eager: each mode by both clocks, at one commit."""

    size: str
    context_length: int
    precision: str
    commit: str
    wall: dict[str, CaseResult]
    """Results by mode."""

    busy: dict[str, CaseResult]

    def seconds(self, clock: str, mode: str) -> float | None:
        """Median by "wall" or "busy"; None without a time."""
        found = estimate((self.wall if clock == "wall" else self.busy).get(mode))
        return found.median if found else None

    @property
    def says_anything(self) -> bool:
        """Whether a phase has a wall time, or the reason why it has none."""
        return any(mode in self.wall for mode in MODES)

    @property
    def busy_share(self) -> float | None:
        """Share of the step's wall time in which the GPU is busy."""
        wall, busy = self.seconds("wall", "step"), self.seconds("busy", "step")
        return min(busy / wall, 1.0) if wall and busy else None

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the step's wall time by phase, and "waiting". Empty if any is unknown.

        Phases are measured one by one and need not add up to the step: they share its time as they share their sum.
        """
        share = self.busy_share
        phases = {mode: self.seconds("busy", mode) for mode in MODES[:3]}
        total = sum(filter(None, phases.values()))
        if share is None or None in phases.values():
            return {}
        return {mode: share * (seconds or 0.0) / total for mode, seconds in phases.items()} | {"waiting": 1 - share}

    @property
    def flops_per_s(self) -> float | None:
        """FLOP/s of the whole step, by its wall time."""
        wall = self.seconds("wall", "step")
        return self.wall["step"].flops / wall if wall else None

    @property
    def utilization(self) -> float | None:
        """`utilization` of the whole step, by its wall time."""
        return utilization(self.wall["step"], self.flops_per_s) if self.flops_per_s else None

    @property
    def predicted_step_bytes(self) -> int | None:
        """Predicted peak of a step; None for models or precisions without a closed form."""
        try:
            config = measured("configs", "ModelConfig")(*SIZES[self.size])
            return measured("accounting.peak", "peak_step_bytes")(
                config, BATCH, self.context_length, precision=self.precision
            )
        except (KeyError, ValueError, Unavailable):
            return None


@dataclass(frozen=True)
class Ways:
    """One model and all ways to run its step."""

    size: str
    context_length: int
    cells: dict[tuple[str, str, str], NewestCell]
    """Cells by precision, variant and attention."""

    def time(self, way: tuple[str, str, str]) -> Estimate | None:
        """Return the time of one variant; None without one."""
        return estimate(self.cells[way].result) if way in self.cells else None

    @property
    def times(self) -> dict[tuple[str, str, str], Estimate]:
        """Times of the variants that have one."""
        return {way: found for way in self.cells if (found := self.time(way))}

    @property
    def fastest(self) -> tuple[str, str, str] | None:
        """Variant that is faster than every other; None where intervals touch."""
        first = shortest(self.times)
        return first[0] if len(first) == 1 else None


def phases_of(cells: Iterable[NewestCell]) -> list[Phases]:
    """Return a row for each model and precision of `PHASES`, small models first.

    What stands side by side was measured together: a row is of the newest commit, as cells come, that has at least
    half as many of its cells as any.
    """
    found: dict[tuple[Any, ...], dict[str, list[CaseResult]]] = {}
    for cell in cells:
        params = cell.result.params
        key = params["size"], params["context_length"], params["precision"]
        found.setdefault(key, {}).setdefault(cell.commit, []).append(cell.result)
    rows = []
    for key in sorted(found, key=_small_first):
        most = max(map(len, found[key].values()))
        commit, results = next(each for each in found[key].items() if 2 * len(each[1]) >= most)
        row = Phases(*key, commit, {}, {})
        for result in results:
            (row.wall if result.params["clock"] == "gpu_wall" else row.busy)[result.params["mode"]] = result
        rows.append(row)
    return rows


def ways_of(cells: Iterable[NewestCell]) -> list[Ways]:
    """Return a row per model of `VARIANTS`, small models first."""
    rows: dict[tuple[Any, ...], Ways] = {}
    for cell in cells:
        params = cell.result.params
        key = params["size"], params["context_length"]
        way = params["precision"], params["variant"], params["attention"]
        rows.setdefault(key, Ways(*key, {})).cells[way] = cell
    return [rows[key] for key in sorted(rows, key=_small_first)]


def _small_first(key: tuple[Any, ...]) -> tuple[int, int]:
    """Sort by model size. The order within a model stays."""
    known = list(SIZES)
    return known.index(key[0]) if key[0] in known else len(known), key[1]
