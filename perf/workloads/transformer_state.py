"""A Transformer in a known state: built with the oracle's weights, restored to them, and compared after a step."""

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

from perf.workloads import measured
from perf.workloads.transformer_oracle import Size, Weights, direction, initial
from perf.workloads.workload import Unavailable, WrongResult

LR, WEIGHT_DECAY, EPS = 1e-3, 0.01, 1e-8
UPDATE_TOLERANCE = 1e-3  # of AdamW's step: float32 weights of 1 keep four digits of a change of 1e-3; 7e-6 on an H200


CHECKPOINT_AXES = ("checkpoint_every", "checkpoint_mode", "checkpoint_offload")


def build_model(size: Size, context_length: int, attention: str, device: str, **checkpoints: Any) -> Any:
    """Build the commit's TransformerLM with the oracle's weights; `checkpoints` are some of `CHECKPOINT_AXES`."""
    import torch

    config = measured("configs", "ModelConfig")(*size)
    attend = functools.partial(measured("attention.api", "flash_attention"), is_causal=True, impl=attention)
    build = measured("transformer", "TransformerLM")
    with torch.device(device):
        model = build(config, context_length, attend, **_known(build, checkpoints))
    restore(model, None)
    return model


def _known(build: Any, checkpoints: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of the commit's own model. Raises `Unavailable` if it cannot checkpoint in this way."""
    known = inspect.signature(build).parameters
    if checkpoints.get("checkpoint_every") is None:
        return {}
    if "checkpoint_every" in known:
        return checkpoints
    every, mode, offload = (checkpoints.get(axis) for axis in CHECKPOINT_AXES)
    if "checkpointed" in known and every == 1 and mode in (None, "groups") and not offload:
        return {"checkpointed": True}
    raise Unavailable(f"this commit cannot checkpoint with {checkpoints}")


def restore(model: Any, optimizer: Any, weights: Weights = initial) -> None:
    """Restore the initial weights and a fresh optimizer in place, where a CUDA graph refers to them."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = weights(name, tuple(parameter.shape), str(parameter.device))
            parameter.copy_(weight)
            for key, value in (optimizer.state.get(parameter, {}) if optimizer else {}).items():
                value.copy_(weight) if key == "master" else value.zero_()


def projection(name: str, gradient: Any) -> Any:
    """Return a parameter's gradient projected on `direction` and its squared norm: shape [2], float64."""
    import torch

    wide = gradient.double()
    return torch.stack([(wide * direction(name, tuple(wide.shape), str(wide.device))).sum(), wide.square().sum()])


def trained(model: Any) -> list[tuple[str, Any]]:
    """Return the named parameters that are not frozen."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def projections(model: Any) -> dict[str, Any]:
    """Project every trained parameter's gradient, by name. Raises `WrongResult` for one without a gradient."""
    by_name = {}
    for name, parameter in trained(model):
        if parameter.grad is None:
            raise WrongResult(f"{name} has no gradient")
        by_name[name] = projection(name, parameter.grad)
    return by_name


def slope_and_norm(model: Any) -> tuple[float, float]:
    """Return the whole gradient's projection on `direction` and its norm. Raises as `projections` does."""
    slope, square = sum(projections(model).values()).tolist()
    return slope, square**0.5


@contextlib.contextmanager
def projections_of_backward(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the `projection` of every gradient that a backward computes inside the block, by the parameter's name.

    It is taken before the gradient is accumulated, averaged or moved. The replay of a CUDA graph gives none.
    """
    by_name: dict[str, Any] = {}
    handles = [
        parameter.register_hook(lambda gradient, name=name: by_name.update({name: projection(name, gradient.detach())}))
        for name, parameter in trained(model)
    ]
    try:
        yield by_name
    finally:
        for handle in handles:
            handle.remove()


def update_error(model: Any, optimizer: Any, weights: Weights = initial, lr: float = LR) -> float:
    """Return the error of AdamW's first step from the initial weights.

    The float32 master weight counts if the model's own is rounded. A frozen one is to stay as it is.
    """
    sums = []
    for name, parameter in model.named_parameters():
        old = weights(name, tuple(parameter.shape), str(parameter.device))
        new = optimizer.state[parameter].get("master", parameter)
        gradient, rate = (parameter.grad, lr) if parameter.requires_grad else (old, 0.0)
        sums.append(update_sums(new, old, gradient, rate))
    error, square = sum(sums).tolist()
    return (error / square) ** 0.5


def update_sums(new: Any, old: Any, gradient: Any, lr: float = LR) -> Any:
    """Return the squared norms of the error of AdamW's first step, and of the step: shape [2], float64.

    The step is a decay of the weights, then lr g / (|g| + eps).
    """
    import torch

    new, old, gradient = (x.detach().double() for x in (new, old, gradient))
    update = -lr * WEIGHT_DECAY * old - lr * gradient / (gradient.abs() + EPS)
    return torch.stack([(new - old - update).square().sum(), update.square().sum()])


def hold(what: str, error: float, allowed: float, reference: str = "float64") -> float:
    """Return `error`. Raises `WrongResult` if it exceeds `allowed` or is NaN."""
    if not error <= allowed:  # NaN compares false
        raise WrongResult(f"{what} differs from {reference} by {error:.1e} (relative), allowed {allowed:.1e}")
    return error
