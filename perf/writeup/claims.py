"""Figures beside which the write-up sets what others quote on the same assignment."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from perf.site import recorded
from perf.studies.on_file import NotOnFile, OnFile, some
from perf.writeup import flash
from perf.writeup.editions import FLASH, STEPS
from perf.writeup.markdown import Markup, code
from perf.writeup.problems import Need
from perf.writeup.source import Source

if TYPE_CHECKING:
    import pandas

VARIANTS = "attention.FlashVariants"

NEEDS = {
    "variants": Need(VARIANTS),
    "flash": FLASH,
    "steps": STEPS,
    "precision": Need("precision"),
    "attention_memory": Need("attention-memory"),
}
"""Studies and series that make the rows of each claim."""


class Claims:
    """Ratios of attention from asv's table. Raises `NotOnFile` where it has no such cell."""

    def __init__(self, source: Source) -> None:
        """Keep the source."""
        self.source = source
        self.gains = functools.cache(self._gains)  # a table names the smallest and the largest

    def _gains(self, quantity: str, seq_len: int, and_longer: bool = False, dtype: str = "bfloat16") -> list[float]:
        """Eager over ours of a forward and backward, every head dimension at that length."""
        cells = self.source.newest_cells("attention.FlashAttention", quantity)
        if cells.empty:
            raise NotOnFile(quantity)
        cells = cells[(cells["dtype"] == dtype) & (cells["mode"] == "forward_backward")]
        cells = cells[cells["seq_len"] >= seq_len] if and_longer else cells[cells["seq_len"] == seq_len]
        return some(flash.gains(cells)["gain"].tolist(), f"seq_len {seq_len}")

    def tiled(self, dtype: str) -> float:
        """Eager over tiled attention in plain PyTorch, forward and backward at 1024."""
        times = OnFile(self._variants(dtype).set_index("impl")["value"])
        return times["reference"] / times["pytorch"]

    def tiled_kernels(self, dtype: str) -> tuple[int, float]:
        """Launches of the same call of tiled attention, and their share of its time; (0, 0.0) without a record."""
        cells = self._variants(dtype)
        (cell,) = some(cells[cells["impl"] == "pytorch"].to_dict("records"), "tiled attention")
        wanted = {"seq_len": 1024, "dtype": dtype, "mode": "forward_backward", "impl": "pytorch"}
        lines = recorded.read(self.source.folder / "records", self.source.machine, str(cell["commit"])).lines
        for line in lines:
            if line.get("benchmark") == VARIANTS and line.get("kernels") and wanted.items() <= line["params"].items():
                launches, us = (sum(kernel[at] for kernel in line["kernels"]) for at in (1, 2))
                return launches, us * 1e-6 / cell["value"]
        return 0, 0.0

    def _variants(self, dtype: str) -> "pandas.DataFrame":
        cells = self.source.newest_cells(VARIANTS)
        if cells.empty:
            raise NotOnFile("variants")
        cells = cells[(cells["seq_len"] == 1024) & (cells["mode"] == "forward_backward") & (cells["status"] == "ok")]
        return cells[cells["dtype"] == dtype]


def else_command(machine: str) -> Callable[..., Markup]:
    """For templates: a cell of a table, or the command that measures it where its rows are not on file."""

    def cell(need: Need, caller: Callable[[], str]) -> Markup:
        try:
            return Markup(caller())
        except NotOnFile:
            return Markup(f"not measured: {code(need.command(machine))}")

    return cell
