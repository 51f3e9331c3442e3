"""A training step whose compilation is in question: what torch.compile makes of it."""

import dataclasses
from typing import Any

from perf.workloads import transformer
from perf.workloads.workload import Unavailable, Workload


def build(params: dict[str, Any], device: str) -> Workload:
    """Build `perf.workloads.transformer` with nothing compiled; its facts are `compilations`.

    Raises `Unavailable` if this torch does not count them.
    """
    forget_compilations()
    return dataclasses.replace(transformer.build(params, device), facts=compilations)


def forget_compilations() -> None:
    """Drop compiled code and counts: code compiled for another shape would make this one's a recompilation."""
    import torch

    torch.compiler.reset()
    utils = _utils()
    utils.counters.clear()
    utils.clear_compilation_metrics()


def compilations() -> dict[str, float]:
    """Count graphs, graph_breaks and recompiles, these among the last 64 compilations, which torch keeps."""
    utils = _utils()
    return {
        "graphs": utils.counters["stats"]["unique_graphs"],
        "graph_breaks": sum(utils.counters["graph_break"].values()),
        "recompiles": sum(bool(metric.recompile_reason) for metric in utils.get_compilation_metrics()),
    }


def _utils() -> Any:
    from torch._dynamo import utils

    for name in ("counters", "clear_compilation_metrics", "get_compilation_metrics"):
        if not hasattr(utils, name):
            raise Unavailable(f"this torch does not count compilations: no torch._dynamo.utils.{name}")
    return utils
