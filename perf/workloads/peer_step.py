"""A user's own training step, checked against the losses of ours from the same weights on the same batch."""

from collections import OrderedDict
from typing import Any

from perf.workloads import imported, measured
from perf.workloads.transformer_oracle import SIZES, ExactStep, weights_of
from perf.workloads.transformer_state import hold
from perf.workloads.transformer_training import data_of, floor_of, foreign_of
from perf.workloads.workload import Workload, WrongResult

LOSS_TOLERANCE = 1e-3
"""Relative error of the first loss; that of bfloat16 (`transformer_training.LOSS_TOLERANCE`)."""

CHANGE_TOLERANCE = 0.05
"""Error of the decrease of the loss in a step, relative to that of our checked step."""


def build(name: str, params: dict[str, Any], device: str, exact: ExactStep, second_loss: float) -> Workload:
    """Build the step that `name`, module:function, returns; its first two calls check it, so that it is checked once.

    `params`: size, context_length, batch, and model if it is a user's own. The function is called with the
    `ModelConfig`, the model's state dict (float32, which it may keep), ids and targets. It returns a function that
    takes a step of AdamW with torch's defaults and returns the loss from before the update. The first loss is compared
    with `exact.loss`, the second with `second_loss`, which no other gradient or update rule gives.
    """
    config = measured("configs", "MODEL_CONFIGS")[params["size"]]
    foreign = foreign_of(params, device)
    weights = OrderedDict(foreign.first(device) if foreign else weights_of(SIZES[params["size"]], device))
    # By the names of modules, as torch saves them along, a `TransformerLM` tells its own RoPE layout from the course's.
    weights._metadata = {name: {} for name in (foreign.modules if foreign else ("",))}  # type: ignore[attr-defined]
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
        hold("the decrease of the loss in a step", change, CHANGE_TOLERANCE, "that of our checked step")
        return error

    precision = "bf16" if device == "cuda" else "fp32"  # of the highest rate
    return Workload(run=run, check=check, floor=floor_of(params, precision, "step"))


def _number(name: str, loss: Any) -> float:
    try:
        return float(loss.detach() if hasattr(loss, "detach") else loss)
    except (TypeError, ValueError, RuntimeError):
        raise WrongResult(f"a step of {name} returned {type(loss).__name__}; allowed: its loss, a number") from None
