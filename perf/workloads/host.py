"""Host work that launches a call: attention, or a phase of a training step."""

import dataclasses
from typing import Any

from perf.workloads import attention, transformer
from perf.workloads.workload import Floor, Workload

LAUNCHES = {"forward": 1, "backward": 1, "forward_backward": 2, "optimizer": 1, "step": 1}
"""Minimum launches by mode: a kernel forward and one backward; a CUDA graph of a whole step is one."""


def build(params: dict[str, Any], device: str) -> Workload:
    """Build `perf.workloads.attention` if `params` name an impl, else `perf.workloads.transformer`.

    The check is theirs. The floor is that of launches, because the host returns before the device has finished.
    """
    work = (attention if "impl" in params else transformer).build(params, device)
    return dataclasses.replace(work, floor=Floor(launches=LAUNCHES[params["mode"]]))
