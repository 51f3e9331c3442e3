"""A Transformer in a known state: built with the oracle's weights, brought back to them, and looked at after a step."""

import functools
from typing import Any

from perf.workloads import measured
from perf.workloads.transformer_oracle import Size, direction, initial
from perf.workloads.workload import WrongResult

LR, WEIGHT_DECAY, EPS = 1e-3, 0.01, 1e-8
UPDATE_TOLERANCE = 1e-2  # of AdamW's step: float32 weights of 1 keep four digits of a change of 1e-3


def build_model(size: Size, context_length: int, attention: str, device: str) -> Any:
    """The commit's TransformerLM, with the weights that the oracle has."""
    import torch

    config = measured("configs", "ModelConfig")(*size)
    attend = functools.partial(measured("attention.api", "flash_attention"), is_causal=True, impl=attention)
    with torch.device(device):
        model = measured("transformer", "TransformerLM")(config, context_length, attend)
    restore(model, None)
    return model


def restore(model: Any, optimizer: Any) -> None:
    """The initial weights and a fresh optimizer, in place: a CUDA graph knows where they are."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = initial(name, tuple(parameter.shape), str(parameter.device))
            parameter.copy_(weight)
            for key, value in (optimizer.state.get(parameter, {}) if optimizer else {}).items():
                value.copy_(weight) if key == "master" else value.zero_()


def slope_and_norm(model: Any) -> tuple[float, float]:
    """The gradient's projection on `direction`, and its norm. Raises `WrongResult` for a parameter without one."""
    slope = square = 0.0
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise WrongResult(f"{name} has no gradient")
        gradient = parameter.grad.double()
        slope += float((gradient * direction(name, tuple(gradient.shape), str(gradient.device))).sum())
        square += float(gradient.square().sum())
    return slope, square**0.5


def update_error(model: Any, optimizer: Any) -> float:
    """Of AdamW's first step from the initial weights: decay, then lr g / (|g| + eps), since both moments are g's.

    Of the float32 master weight, where the model's own is rounded.
    """
    error = square = 0.0
    for name, parameter in model.named_parameters():
        old = initial(name, tuple(parameter.shape), str(parameter.device)).double()
        gradient = parameter.grad.double()
        update = -LR * WEIGHT_DECAY * old - LR * gradient / (gradient.abs() + EPS)
        new = optimizer.state[parameter].get("master", parameter).detach().double()
        error += float((new - old - update).square().sum())
        square += float(update.square().sum())
    return (error / square) ** 0.5


def hold(what: str, error: float, allowed: float, reference: str = "float64") -> float:
    """Returns `error`. Raises `WrongResult` above what is allowed, and for NaN."""
    if not error <= allowed:  # NaN compares false
        raise WrongResult(f"{what} differs from {reference} by {error:.1e} (relative), allowed {allowed:.1e}")
    return error
