"""One measuring process of the noise study: `python -P -m perf.studies.noise.process`, a JSON document a line.

    {"case", "allocations", "passes", "samples", "seed"}   -> rows: allocation, pass, medians a and b of two arms
    {"hold": case}                                         -> builds it and warms it up, replies {}
    {"take": n}                                            -> n samples of what is held

The two arms of a visit are the same work on the same tensors: what they differ by is noise.
"""

import json
import random
import statistics
import sys
from typing import Any

from perf.harness.case import Case
from perf.harness.cuda_clocks import CUDA_CLOCKS
from perf.studies.lm import bench
from perf.workloads import build

WARM_UPS = 3  # 25 ms each


def main() -> None:
    """Answer requests until stdin ends."""
    held: list[Any] = []
    for line in sys.stdin:
        request = json.loads(line)
        if "case" in request:
            reply: Any = visits(**(request | {"case": Case(**request["case"])}))
        elif "hold" in request:
            held[:] = ()  # gives its memory back before the next one is made
            case = Case(**request["hold"])
            held[:] = [CUDA_CLOCKS[case.clock](), build(case.workload, case.params, case.device), case.cache]
            bench().check(held[1])
            for _ in range(WARM_UPS):
                held[0].warm_up(held[1])
            reply = {}
        else:
            clock, work, cache = held
            reply = bench().batch(clock, work, cache, request["take"])
        print(json.dumps(reply), flush=True)


def visits(case: Case, allocations: int, passes: int, samples: int, seed: int) -> list[dict[str, Any]]:
    """Each allocation of a case visited `passes` times in shuffled order; the first one made is a warm-up."""
    import torch

    order = random.Random(seed)
    clock = CUDA_CLOCKS[case.clock]()
    works, spacers = [], []
    for index in range(allocations + 1):
        works.append(build(case.workload, case.params, case.device))
        bench().check(works[-1])
        spacers.append(torch.empty(3_000_000 * (index % 7 + 1), device="cuda"))  # so that no two lie alike
    rows = []
    for number in range(passes):
        turn = list(range(1, allocations + 1))
        order.shuffle(turn)
        for index in [0, *turn] if number == 0 else turn:
            for _ in range(WARM_UPS):
                clock.warm_up(works[index])
            arms = dict.fromkeys(("a", "b"), (clock, works[index]))
            a, b = bench().sample_in_turn(arms, case.cache, samples).values()
            if index:
                rows.append({"allocation": index, "pass": number, "a": statistics.median(a), "b": statistics.median(b)})
    return rows


if __name__ == "__main__":
    main()
