"""A training step of a user's own, held to the losses of ours: from the same weights, on the same batch."""

from typing import Any

from perf.workloads import imported, measured
from perf.workloads.transformer_oracle import SIZES, ExactStep, weights_of
from perf.workloads.transformer_state import hold
from perf.workloads.transformer_training import data_of, floor_of, foreign_of
from perf.workloads.workload import Workload, WrongResult

LOSS_TOLERANCE = 1e-3
"""Relative, of a first loss: what bfloat16 is given (`transformer_training.LOSS_TOLERANCE`)."""

CHANGE_TOLERANCE = 0.05
"""Of what a step takes off the loss, relative to what a checked step of ours does."""


def build(name: str, params: dict[str, Any], device: str, exact: ExactStep, second_loss: float) -> Workload:
    """The step that `name`, module:function, builds; it is checked by its first two calls, and so only once.

    `params`: size, context_length, batch, model where it is a user's own. The function is called with the
    `ModelConfig`, the weights by their names in the model (float32, its own to keep), ids and targets, and returns one
    that takes a step of AdamW with torch's defaults and returns the loss from before the update. The first is held to
    `exact.loss`, the next to `second_loss`, which no other gradient or rule would give.
    """
    config = measured("configs", "MODEL_CONFIGS")[params["size"]]
    foreign = foreign_of(params, device)
    weights = foreign.first(device) if foreign else weights_of(SIZES[params["size"]], device)
    step = imported(name)(config, weights, *data_of(params, device))
    del weights
    losses: list[float] = []

    def run() -> Any:
        loss = step()
        if len(losses) < 2:
            losses.append(_number(name, loss))
        return loss

    def check() -> float:
        while len(losses) < 2:
            run()
        first, second = losses
        error = hold("the loss", abs(first - exact.loss) / exact.loss, LOSS_TOLERANCE)
        change = abs((second - second_loss) / (second_loss - exact.loss))
        hold("what a step takes off the loss", change, CHANGE_TOLERANCE, "that of our checked step")
        return error

    precision = "bf16" if device == "cuda" else "fp32"  # the best rate that a step can have
    return Workload(run=run, check=check, floor=floor_of(params, precision, "step"))


def _number(name: str, loss: Any) -> float:
    try:
        return float(loss.detach() if hasattr(loss, "detach") else loss)
    except (TypeError, ValueError, RuntimeError):
        raise WrongResult(f"a step of {name} returned {type(loss).__name__}; allowed: its loss, one number") from None
