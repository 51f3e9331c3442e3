"""Compare the arms of cells of attention, in as many processes as their scatter demands."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from perf.harness.comparison import Pilot, compare
from perf.harness.preflight import objection
from perf.harness.status import GOES_ON
from perf.studies.attention.arms import Process
from perf.studies.attention.cells import C, Cell
from perf.studies.attention.results import NOT_MEASURED, processes_wanted
from perf.studies.document import document
from perf.studies.progress import progress
from perf.studies.rows import Row
from perf.studies.speedups import FEWEST, Effort


def start(process: Process, rows: list[Row]) -> dict[str, Any]:
    """Return the document that holds `rows`. Raises `click.ClickException` where nothing can be measured."""
    greeting = process.greeting()
    if reason := objection(greeting["troubles"]):
        raise click.ClickException(reason)
    return document(process.device, rows) | {name: greeting[name] for name in ("device", "ceilings")}


def measure(process: Process, plan: dict[C, list[Row]], effort: Effort) -> Iterator[None]:
    """Add samples to the rows of each cell; yield after each visit to a cell.

    After the pilot each cell is visited as often as the scatter of its speed-ups demands.
    """
    until = Pilot[C](FEWEST, effort.processes, lambda cell: processes_wanted(plan[cell], effort))

    def in_a_process(cells: Sequence[C], number: int) -> Iterator[None]:
        bar.total = sum(until.number_of) or bar.total
        for cell in cells:
            bar.set_postfix_str(f"{cell.group} {cell.seq_len} {cell.d} {cell.mode}, process {number + 1}")
            visit(process, cell, plan[cell], effort.rounds, number)
            bar.update()
            yield
        process.end()

    with progress(total=min(FEWEST, effort.processes) * len(plan), unit="cell") as bar:
        yield from compare(list(plan), until, in_a_process)


def visit(process: Process, cell: Cell, rows: list[Row], rounds: int, number: int) -> None:
    """Add the samples of one process to a cell's rows; check each arm once."""
    alive = [row for row in rows if row["status"] in (*GOES_ON, NOT_MEASURED)]
    if {row["role"] for row in alive} != {"ours", "against"}:
        return  # nothing is left to compare
    first = number % len(alive)
    by_name = {row["impl"]: row for row in (*alive[first:], *alive[:first])}
    unchecked = [impl for impl, row in by_name.items() if "error" not in row]
    for impl, reply in process.take_turns(cell, list(by_name), unchecked, rounds).items():
        row = by_name[impl]
        row |= {name: reply[name] for name in ("flops", "error") if name in reply}
        if reply["status"] == "ok":
            row |= {"status": "ok", "reason": ""}
            row["samples_s"].append(reply["samples_s"])
            if "sm_mhz" in reply:
                row.setdefault("sm_mhz", []).append(reply["sm_mhz"])
        elif reply["status"] != "throttled" or not row["samples_s"]:
            row |= {"status": reply["status"], "reason": reply["reason"]}
