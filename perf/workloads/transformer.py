"""A Transformer language model on one batch: a phase of its training step, or the whole step."""

from typing import Any

from perf.workloads.transformer_training import MATMUL_DTYPES, Training, floor
from perf.workloads.workload import Workload, require_allowed

__all__ = ["MODES", "build", "floor"]

MODES = ("forward", "backward", "optimizer", "step")
SCALED = ("fp16",)
"""Precisions with loss scaling: the optimizer would unscale the same gradients again in every sample."""


def build(params: dict[str, Any], device: str) -> Workload:
    """Build a phase, or the whole step. `params`: those of `Training`, and mode (of `MODES`).

    forward keeps nothing for a backward. backward is timed on a graph built before every sample, optimizer on gradients
    computed once. step is zero_grad, forward, backward and optimizer, and the only mode with a CUDA graph.
    """
    mode, variant = params["mode"], params["variant"]
    require_allowed(params, mode=MODES, precision=[name for name in MATMUL_DTYPES if name not in SCALED])
    if variant.endswith("cuda_graph") and mode != "step":
        raise ValueError(f"variant={variant!r} was given with mode={mode!r}; allowed: mode='step'")
    return getattr(Training(params, device), mode)()
