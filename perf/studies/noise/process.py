"""The measuring process of the noise study.

The two arms of a visit are the same work on the same tensors, so that their difference is noise.
"""

import random
import statistics

from perf.harness.case import Case
from perf.harness.clock import Clock
from perf.studies.device import bench
from perf.studies.rows import Row
from perf.workloads import build
from perf.workloads.workload import Workload

WARM_UPS = 3  # 25 ms each

_prepared: list[tuple[Clock, Workload, Case]] = []


def prepare(case: Case) -> None:
    """Build a case and warm it up, for `take`."""
    _prepared.clear()  # frees its memory before the next case allocates
    clock, work = bench().instruments.new_clock(case.clock), build(case.workload, case.params, case.device)
    bench().check(work)
    for _ in range(WARM_UPS):
        clock.warm_up(work)
    _prepared.append((clock, work, case))


def take(count: int) -> list[float]:
    """Take samples of the prepared case, in seconds."""
    ((clock, work, case),) = _prepared
    return bench().batch(clock, work, case.cache, count)


def visits(case: Case, allocations: int, passes: int, samples: int, seed: int) -> list[Row]:
    """Visit each allocation of a case `passes` times in shuffled order; the first one made is a warm-up.

    Returns rows: allocation, pass, and the medians a and b of two arms.
    """
    import torch

    order = random.Random(seed)
    clock = bench().instruments.new_clock(case.clock)
    works, spacers = [], []
    for index in range(allocations + 1):
        works.append(build(case.workload, case.params, case.device))
        bench().check(works[-1])
        spacers.append(
            torch.empty(3_000_000 * (index % 7 + 1), device=case.device)
        )  # so that no two have the same alignment
    rows = []
    for number in range(passes):
        turn = list(range(1, allocations + 1))
        order.shuffle(turn)
        for index in [0, *turn] if number == 0 else turn:
            for _ in range(WARM_UPS):
                clock.warm_up(works[index])
            arms = dict.fromkeys(("a", "b"), (clock, works[index]))
            a, b = bench().sample_in_turn(arms, case.cache, samples).samples_s.values()
            if index:
                rows.append({"allocation": index, "pass": number, "a": statistics.median(a), "b": statistics.median(b)})
    return rows
