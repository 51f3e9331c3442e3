"""The study's end of a measuring process: ask it, and start another one when it dies or has seen enough."""

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from perf.studies.attention import arms
from perf.studies.attention.arms import Device, Reply
from perf.studies.attention.cells import Cell
from perf.studies.fresh_process import fresh_process


class Process:
    """The measuring process: a fresh one at the first question, after `end`, and after one that died."""

    def __init__(self, device: Device):
        self.device = device
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def greeting(self) -> dict[str, Any]:
        """Who measures: device, ceilings, and troubles, if any."""
        return self._ask(arms.greeting)

    def take_turns(self, cell: Cell, impls: list[str], unchecked: list[str], rounds: int) -> dict[str, Reply]:
        """As `SideBySide.take_turns`, but of all `impls`: one that ends the process is left out, and the rest go on."""
        try:
            replies, goes_on = self._ask(arms.take_turns, cell, impls, unchecked, rounds)
        except BrokenProcessPool:
            replies, goes_on = self._found_out(cell, impls, unchecked), False
        if not goes_on:
            self.end()
        if left := [impl for impl in impls if impl not in replies]:
            replies |= self.take_turns(cell, left, unchecked, rounds)
        return replies

    def end(self) -> None:
        """The next question starts another one."""
        if self._pool:
            self._pool.shutdown()
        self._pool = None

    def _ask(self, question: Any, *arguments: Any) -> Any:
        self._pool = self._pool or fresh_process(arms.__name__)
        return self._pool.submit(question, self.device, *arguments).result()

    def _found_out(self, cell: Cell, impls: list[str], unchecked: list[str]) -> dict[str, Reply]:
        """Which of them the process dies of, each alone; all, if of none."""
        died: Reply = {"status": "crashed", "reason": "the measuring process died; its last words are above"}
        if len(impls) == 1:
            return {impls[0]: died}
        self.end()
        alone = {impl: self.take_turns(cell, [impl], unchecked, 2)[impl] for impl in impls}
        return {impl: died for impl, reply in alone.items() if reply == died} or dict.fromkeys(impls, died)
