"""A measuring process that holds several implementations of attention at once and samples them in turn."""

import itertools
import warnings
from collections.abc import Collection, Sequence
from functools import cache, partial
from typing import Any, Literal

from perf.harness.clock import Clock
from perf.harness.measure import Worker
from perf.harness.pair import Pairs
from perf.harness.working_tree import ROOT
from perf.studies.attention.cells import Cell, least_bytes
from perf.studies.lm import memory_bytes
from perf.workloads import build
from perf.workloads.workload import DoesNotFit, Workload

SECONDS = 1.5
"""Of sampling a cell in a process, at most: four samples of each arm where all of them take 0.3 s together."""

Device = Literal["cuda", "cpu"]
Reply = dict[str, Any]
"""Of an arm: status and reason, as the harness has them; if ok, flops, error (where it was checked) and samples_s."""


class SideBySide(Worker):
    """As every measuring process: with its checkout's package, ceilings, GPU state, and a reason for what fails."""

    def __init__(self, device: Device):
        super().__init__(device, ROOT)
        self._kind = device

    def take_turns(self, cell: Cell, impls: Sequence[str], unchecked: Collection[str], rounds: int) -> dict[str, Reply]:
        """What each of `impls` gave; of fewer of them where one broke the device, so that this process has to end.

        Built in this order, each with tensors of its own of the same numbers; those in `unchecked` compared with
        float64; all warmed up; then, but for those that the cell leaves out, sampled in turn, A B C, C B A, up to
        `rounds` times. An arm that fails on the way costs the others nothing.
        """
        self._leftovers.release()
        replies: dict[str, Reply] = {}
        held: dict[str, tuple[Clock, Workload]] = {}
        for impl in impls:
            replies[impl] = self._said(partial(self._hold, cell, impl, impl in unchecked, held))
            if not self.usable():
                return {impl: replies[impl]}
        for impl, (clock, work) in list(held.items()):
            warmed_up = self._said(partial(self._warm_up, clock, work))
            if warmed_up["status"] != "ok":
                replies[impl] = warmed_up
                del held[impl]
            if not self.usable():
                return {impl: replies[impl]}
        first_s = {impl: clock.call_s for impl, (clock, _) in held.items()}
        for impl, reason in cell.out_of_the_race(first_s).items():
            replies[impl] |= {"status": "out_of_the_race", "reason": reason}
            del held[impl]
        if held:
            taken = self._said(partial(self._sample_in_turn, cell, held, rounds))
            for impl, (_, work) in held.items():
                if taken["status"] == "ok":
                    replies[impl] |= self._said(partial(self._held_to_floor, cell, impl, work, taken["arms"][impl]))
                else:
                    replies[impl] |= taken
        return replies

    def _hold(self, cell: Cell, impl: str, check: bool, held: dict[str, tuple[Clock, Workload]]) -> dict[str, Any]:
        """Builds one arm and runs it once, which may compile."""
        if (least := least_bytes(cell, impl)) > memory_bytes():
            here = f"this GPU has {memory_bytes() / 2**30:.0f}"
            raise DoesNotFit(f"its scores take {least / 2**30:.0f} GiB at least, {here}")
        case = cell.case(impl, self._kind)
        self._clock_of(case)  # or say why not
        work = build(case.workload, case.params, case.device)
        work.prepare()
        work.run()
        self._synchronize()
        found = {"flops": work.floor.flops} | ({"error": work.check()} if check else {})
        held[impl] = self._makers[case.clock](), work  # a clock of its own: it knows the work that it has warmed up
        return found

    def _warm_up(self, clock: Clock, work: Workload) -> dict[str, Any]:
        clock.warm_up(work)
        return {}

    def _sample_in_turn(self, cell: Cell, held: dict[str, tuple[Clock, Workload]], rounds: int) -> dict[str, Any]:
        """`arms`: samples_s and sm_mhz of each, without the rounds in which the GPU slowed itself down."""
        arms = list(held.values())
        count = Pairs(most=rounds, seconds=SECONDS).number(sum(clock.call_s for clock, _ in arms))
        turns = self._alternate(arms, cell.cache, count)
        if count - len(turns.slow) < 2:
            reasons = dict.fromkeys(itertools.chain.from_iterable(turns.slow.values()))
            return {"status": "throttled", "reason": f"the GPU slowed itself down: {', '.join(reasons)}"}
        found: dict[str, Any] = {}
        for impl, mine, mhz in zip(held, turns.samples_s, turns.mhz, strict=True):
            found[impl] = {"samples_s": [round(s, 10) for number, s in enumerate(mine) if number not in turns.slow]}
            if mhz is not None:
                found[impl]["sm_mhz"] = mhz
        return {"arms": found}

    def _held_to_floor(self, cell: Cell, impl: str, work: Workload, found: dict[str, Any]) -> dict[str, Any]:
        self._hold_to_floor(found["samples_s"], cell.case(impl, self._kind), work.floor)
        return found


@cache
def _this_process(device: Device) -> tuple[SideBySide, dict[str, Any]]:
    # Inductor's: IEEE float32 is what is asked for. cuBLAS', in autograd's thread: it sets the context and goes on.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores .* available but not enabled")
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
    worker = SideBySide(device)
    return worker, worker.greeting()


def greeting(device: Device) -> dict[str, Any]:
    """Of this process, which measures from now on: device, software, ceilings, and troubles."""
    return _this_process(device)[1]


def take_turns(
    device: Device, cell: Cell, impls: Sequence[str], unchecked: Collection[str], rounds: int
) -> tuple[dict[str, Reply], bool]:
    """`SideBySide.take_turns` of this process; and whether it can be asked again."""
    worker, _ = _this_process(device)
    return worker.take_turns(cell, impls, unchecked, rounds), worker.usable()
