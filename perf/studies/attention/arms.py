"""A fresh process in which several implementations of attention are compared side by side."""

import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from typing import Any

from perf.harness.comparison import ComparedArm, Comparer, Reply, Rounds
from perf.harness.instruments import Instruments
from perf.harness.measure import pin_package
from perf.harness.working_tree import ROOT
from perf.studies.attention.cells import Cell, min_bytes
from perf.studies.device import Device, memory_bytes
from perf.studies.fresh_process import DIED, FreshProcess
from perf.units import GIB, gib
from perf.workloads import build
from perf.workloads.workload import DoesNotFit, Workload

SECONDS = 5.0
"""Maximum that a process spends on sampling a cell: eight samples of each arm if a round takes 0.6 s.

Calls of 0.2 s throttle an H100, each by another amount: their times scatter by 5 %.
"""


class Process(FreshProcess):
    """The measuring process."""

    def __init__(self, device: Device):
        super().__init__(__name__)
        self.device = device

    def greeting(self) -> dict[str, Any]:
        """Return device, software, ceilings and troubles."""
        return self.ask(greeting, self.device)

    def take_turns(self, cell: Cell, impls: list[str], unchecked: list[str], rounds: int) -> dict[str, Reply]:
        """Compare all `impls` like the function `take_turns`, without those that kill the process."""
        try:
            replies, goes_on = self.ask(take_turns, self.device, cell, impls, unchecked, rounds)
        except BrokenProcessPool:
            replies, goes_on = self._deaths(cell, impls, unchecked), False
        if not goes_on:
            self.end()
        if left := [impl for impl in impls if impl not in replies]:
            replies |= self.take_turns(cell, left, unchecked, rounds)
        return replies

    def _deaths(self, cell: Cell, impls: list[str], unchecked: list[str]) -> dict[str, Reply]:
        """Find the arms that kill the process when they run alone; all, if none does."""
        if len(impls) == 1:
            return {impls[0]: DIED}
        alone = {impl: self.take_turns(cell, [impl], unchecked, 2)[impl] for impl in impls}
        return {impl: DIED for impl, reply in alone.items() if reply == DIED} or dict.fromkeys(impls, DIED)


@cache
def _this_process(device: Device) -> tuple[Comparer, dict[str, Any]]:
    # Inductor's advice: we measure IEEE float32. cuBLAS's, in autograd's thread: it sets the context and goes on.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores .* available but not enabled")
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
    instruments = Instruments(device)
    return Comparer(instruments), instruments.greeting(pin_package(ROOT))


def greeting(device: Device) -> dict[str, Any]:
    """Return device, software, ceilings and troubles of this process, which measures from now on."""
    return _this_process(device)[1]


def take_turns(
    device: Device, cell: Cell, impls: Sequence[str], unchecked: Collection[str], rounds: int
) -> tuple[dict[str, Reply], bool]:
    """Compare implementations in this process; also return whether the process is still usable."""
    worker, _ = _this_process(device)
    return compared(worker, device, cell, impls, unchecked, rounds), worker.instruments.usable


def compared(
    worker: Comparer, device: Device, cell: Cell, impls: Sequence[str], unchecked: Collection[str], rounds: int
) -> dict[str, Reply]:
    """Compare implementations on tensors of their own with the same numbers; check those in `unchecked`."""
    arms = [
        ComparedArm(
            impl,
            build=builder(cell, impl, device),
            new_clock=partial(worker.instruments.new_clock, cell.clock),
            is_checked=impl in unchecked,
        )
        for impl in impls
    ]
    replies = worker.take_turns(arms, cell.cache, Rounds(rounds, SECONDS).number, too_slow=cell.too_slow)
    for reply in replies.values():
        if "samples_s" in reply:
            reply["samples_s"] = [round(sample, 10) for sample in reply["samples_s"]]
    return replies


def builder(cell: Cell, impl: str, device: Device) -> Callable[[], Workload]:
    """Return a function that builds one arm of a cell."""

    def build_arm() -> Workload:
        if (needed := min_bytes(cell, impl)) > memory_bytes():
            raise DoesNotFit(f"its scores take {gib(needed, 0)} at least, this GPU has {memory_bytes() / GIB:.0f}")
        case = cell.case(impl, device)
        return build(case.workload, case.params, case.device)

    return build_arm
