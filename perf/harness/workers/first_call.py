"""Entry script of one first call: `python first_call.py CHECKOUT CASE FILE`; its seconds go to FILE.

A process of its own, with the compiler caches that its environment names: see `perf.harness.first_call`.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Build the case, time its first call, write its seconds."""
    from measuring import die_with_parent, import_perf  # type: ignore[import-not-found]  # the script beside this one

    die_with_parent()
    checkout, case = Path(sys.argv[1]), json.loads(sys.argv[2])
    import_perf()

    import torch

    from perf.harness.measure import pin_package
    from perf.workloads import build

    pin_package(checkout)
    synchronize = torch.cuda.synchronize if case["device"] == "cuda" else lambda: None
    work = build(case["workload"], case["params"], case["device"])
    work.prepare()
    synchronize()
    begin = time.perf_counter()
    work.run()
    synchronize()
    Path(sys.argv[3]).write_text(repr(time.perf_counter() - begin))
    os._exit(0)  # without waiting for the compiler's workers


if __name__ == "__main__":
    main()
