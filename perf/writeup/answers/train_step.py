"""The fastest step on one GPU and on two, beside PyTorch's."""

import functools
import itertools
from collections.abc import Callable
from pathlib import PurePath

from perf.studies.lm import SIZES
from perf.studies.on_file import OnFile, some
from perf.studies.speedups import best, bound_of, milliseconds, speedup_of, with_interval
from perf.studies.train_step.study import tflops
from perf.writeup.answers.rows import Answer, Documents, Row, by


class TrainStep(Answer):
    """Figures of `study train-step`; a cell is a size and a context, a speed-up has its relative half-width."""

    @functools.cached_property
    def cells(self) -> dict[tuple[str, int], list[Row]]:
        """The rows of each cell, from the documents of every run: ours beside each of the others."""
        runs = [one["rows"] for name, one in self.documents.items() if PurePath(name).name == "train-step"]
        timed = by(itertools.chain.from_iterable(runs), "context", "size", "against")
        ordered = sorted(timed.values(), key=lambda row: (row["context"], SIZES.index(row["size"])))
        groups = itertools.groupby(ordered, key=lambda row: (row["size"], row["context"]))
        return OnFile({cell: list(rows) for cell, rows in groups})

    def peers(self) -> list[str]:
        """The others, of all cells."""
        return sorted({row["against"] for mine in self.cells.values() for row in mine})

    def samples(self) -> list[tuple[int, int]]:
        """Processes and steps in each, of every arm of ours."""
        rows = [row["ours_s"] for mine in self.cells.values() for row in mine]
        return sorted({(len(processes), len(one)) for processes in rows for one in processes})

    def speedup(self, size: str, context: int) -> tuple[float, float]:
        """Over the best of the others, by the wall clock."""
        return best(self.cells[size, context], speedup_of)[:2]

    def speedups(self, *cells: tuple[str, int]) -> list[float]:
        """The same of several cells, or of all."""
        return [self.speedup(*cell)[0] for cell in cells or self.cells]

    def bounds(self) -> list[tuple[float, float]]:
        """Over the shortest time for which one of the others keeps its GPU busy, every cell."""
        return [best(rows, bound_of)[:2] for rows in self.cells.values()]

    def ms(self, size: str, context: int) -> float:
        """Our milliseconds."""
        return milliseconds(self.cells[size, context][-1], "ours")

    def tflops(self, size: str, context: int) -> float:
        """TFLOP/s of ours."""
        return tflops(self.cells[size, context][-1], self.ms(size, context))


def parallel_speedup(rows: list[Row], ours: str) -> tuple[float, float]:
    """Speed-up of a strategy over the best of the others, in rows of `study parallel-step` or `study fsdp`."""
    mine = some([row for row in rows if row["ours"] == ours and row["status"] == "ok"], ours)
    return best(mine, speedup_of)[:2]


def fastest_step(documents: Documents) -> list[Row]:
    """Our fastest step beside the best of the others, and beside the time for which that keeps its GPU busy."""
    shown = []
    for (size, context), mine in TrainStep(documents).cells.items():
        rows = {row["against"]: row for row in mine}
        (speedup, half, name), (bound, bound_half, busiest) = best(mine, speedup_of), best(mine, bound_of)
        ours = milliseconds(rows[name], "ours")
        cells: Row = {"size, context": f"{size}, {context}", "ours, ms": f"{ours:.2f}"}
        if "model" not in rows[name]:
            cells["TFLOP/s"] = f"{tflops(rows[name], ours):.0f}"
        cells["the best other's, ms"] = f"{milliseconds(rows[name], 'against'):.2f}"
        cells["speed-up"] = with_interval(speedup, half)
        if rows[busiest]["against_busy_s"]:  # not of a CPU
            cells["its GPU busy, ms"] = f"{milliseconds(rows[busiest], 'against_busy'):.2f}"
            cells["speed-up over that"] = with_interval(bound, bound_half)
        shown.append(cells)
    return shown


TABLES: dict[str, Callable[[Documents], list[Row]]] = {"fastest-step": fastest_step}
