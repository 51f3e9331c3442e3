"""Parameters of AdamW's update rule, and the update of one tensor in PyTorch."""

from typing import NamedTuple

from torch import Tensor


class AdamWRule(NamedTuple):
    """Hyperparameters of AdamW."""

    lr: float
    betas: tuple[float, float]
    """Decay rates of the two moments."""

    eps: float
    weight_decay: float
    """Decoupled weight decay, multiplied by lr (Loshchilov and Hutter 2019)."""


def adamw_update(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], rule: AdamWRule) -> None:
    """Update `weight` and its float32 `state` in place, in PyTorch.

    `state` holds step (a scalar that already counts this update), exp_avg, exp_avg_sq and, for a bfloat16 weight, the
    float32 master weight.
    """
    master = state.get("master", weight)
    gradient, count = gradient.float(), float(state["step"])
    beta1, beta2 = rule.betas
    master.mul_(1 - rule.lr * rule.weight_decay)
    state["exp_avg"].lerp_(gradient, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = state["exp_avg_sq"].sqrt().div_((1 - beta2**count) ** 0.5).add_(rule.eps)
    master.addcdiv_(state["exp_avg"], root, value=-rule.lr / (1 - beta1**count))
    if "master" in state:
        weight.copy_(master)
