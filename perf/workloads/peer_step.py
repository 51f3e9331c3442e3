"""A user's own training step, checked against the losses of ours from the same weights on the same batch."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from perf.workloads import imported, measured
from perf.workloads.transformer_oracle import SIZES, ExactStep, weights_of
from perf.workloads.transformer_state import hold
from perf.workloads.transformer_training import data_of, floor_of, foreign_of
from perf.workloads.workload import Workload, WrongResult

LOSS_TOLERANCE = 1e-4
"""Relative error of the first loss: correct code in bfloat16 has at most 3.2e-5 (54 cases, H200).

At the initial weights the loss depends little on attention: without a mask it differs by 5e-4 to 1e-3.
"""

CHANGE_TOLERANCE = 0.03
"""Error of the loss after 1, 2 and 3 steps, relative to the largest change of the loss in them.

Correct code in bfloat16 has at most 6e-3 (small, medium and large, 64 tokens a sequence, a CPU), the more the later, as
the loss may rise again; gradients that are never zeroed show from the second step on.
"""

NEXT_LOSSES = 3
"""Checked losses after the first."""


def build(name: str, params: dict[str, Any], device: str, exact: ExactStep, next_losses: Sequence[float]) -> Workload:
    """Build the step that `name`, module:function, returns; its first calls check it, so that it is checked once.

    `params`: size, context_length, batch, and model if it is a user's own. The function is called with the
    `ModelConfig`, the model's state dict (float32, which it may keep), ids and targets. It returns a function that
    takes a step of AdamW with torch's defaults and returns the loss from before the update. The first loss is compared
    with `exact.loss`, the next ones with `next_losses`. Losses do not show all: a step without weight decay passes.
    """
    config = measured("configs", "MODEL_CONFIGS")[params["size"]]
    foreign = foreign_of(params, device)
    weights = OrderedDict(foreign.first(device) if foreign else weights_of(SIZES[params["size"]], device))
    # By the names of modules, as torch saves them along, a `TransformerLM` tells its own RoPE layout from the course's.
    weights._metadata = {name: {} for name in (foreign.modules if foreign else ("",))}  # type: ignore[attr-defined]
    step = imported(name)(config, weights, *data_of(params, device))
    if not callable(step):
        raise WrongResult(f"{name} returned {type(step).__name__}; allowed: a function that takes a step")
    del weights
    losses: list[float] = []

    def run() -> Any:
        loss = step()
        if len(losses) <= len(next_losses):
            losses.append(_number(name, loss))
        return loss

    def check() -> float:
        while len(losses) <= len(next_losses):
            run()
        first, *others = losses
        error = hold("the loss", abs(first - exact.loss) / exact.loss, LOSS_TOLERANCE)
        largest_change = max(abs(expected - exact.loss) for expected in next_losses)
        for steps, (loss, expected) in enumerate(zip(others, next_losses, strict=True), 1):
            change = abs(loss - expected) / largest_change
            hold(f"the change of the loss in {steps} steps", change, CHANGE_TOLERANCE, "that of our checked step")
        return error

    precision = "bf16" if device == "cuda" else "fp32"  # of the highest rate
    return Workload(run=run, check=check, floor=floor_of(params, precision, "step"))


def _number(name: str, loss: Any) -> float:
    try:
        return float(loss.detach() if hasattr(loss, "detach") else loss)
    except (TypeError, ValueError, RuntimeError):
        raise WrongResult(f"a step of {name} returned {type(loss).__name__}; allowed: its loss, a number") from None
