"""Two ways to do one thing, in turn in the same processes: what a study compares, not a case of the suite."""

from typing import Any

from perf.workloads import build as build_one
from perf.workloads.workload import Workload


def build(params: dict[str, Any], device: str) -> Workload:
    """`params`: first and second, each [workload, params]; other names are for both. Both are held at once."""
    common = {name: value for name, value in params.items() if name not in ("first", "second")}
    first, second = (build_one(workload, common | own, device) for workload, own in (params["first"], params["second"]))
    return Workload(
        run=first.run, check=lambda: max(first.check(), second.check()), floor=first.floor, without=second.run
    )
