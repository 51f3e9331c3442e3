"""Two workloads that a study samples in turn in the same processes; not a case of the suite."""

from typing import Any

from perf.workloads import build as build_one
from perf.workloads.workload import Workload


def build(params: dict[str, Any], device: str) -> Workload:
    """Build both. `params`: first and second, each [workload, params]; all other names apply to both."""
    common = {name: value for name, value in params.items() if name not in ("first", "second")}
    first, second = (build_one(workload, common | own, device) for workload, own in (params["first"], params["second"]))
    return Workload(
        run=first.run, check=lambda: max(first.check(), second.check()), floor=first.floor, without=second.run
    )
