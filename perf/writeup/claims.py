"""Figures beside which the write-up sets what others quote on the same assignment."""

from collections.abc import Callable

from perf.studies.on_file import NotOnFile, OnFile, some
from perf.writeup import flash
from perf.writeup.editions import FLASH, STEPS
from perf.writeup.markdown import Markup, code
from perf.writeup.problems import Need
from perf.writeup.source import Source

NEEDS = {
    "variants": Need("attention.FlashVariants"),
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

    def gains(self, quantity: str, seq_len: int, and_longer: bool = False, dtype: str = "bfloat16") -> list[float]:
        """Eager over ours of a forward and backward, every head dimension at that length."""
        cells = self.source.newest_cells("attention.FlashAttention", quantity)
        if cells.empty:
            raise NotOnFile(quantity)
        cells = cells[(cells["dtype"] == dtype) & (cells["mode"] == "forward_backward")]
        cells = cells[cells["seq_len"] >= seq_len] if and_longer else cells[cells["seq_len"] == seq_len]
        return some(flash.gains(cells)["gain"].tolist(), f"seq_len {seq_len}")

    def tiled(self, dtype: str) -> float:
        """Eager over tiled attention in plain PyTorch, forward and backward at 1024."""
        cells = self.source.newest_cells("attention.FlashVariants")
        if cells.empty:
            raise NotOnFile("variants")
        cells = cells[(cells["seq_len"] == 1024) & (cells["mode"] == "forward_backward") & (cells["status"] == "ok")]
        times = OnFile(cells[cells["dtype"] == dtype].set_index("impl")["value"])
        return times["reference"] / times["pytorch"]


def else_command(machine: str) -> Callable[..., Markup]:
    """For templates: a cell of a table, or the command that measures it where its rows are not on file."""

    def cell(need: Need, caller: Callable[[], str]) -> Markup:
        try:
            return Markup(caller())
        except NotOnFile:
            return Markup(f"not measured: {code(need.command(machine))}")

    return cell
