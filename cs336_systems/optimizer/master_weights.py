"""AdamW with float32 master weights, for a model with bfloat16 matrices (Micikevicius et al. 2018).

Autocast rounds every float32 matrix to bfloat16 in every forward and widens every gradient to float32 for the
optimizer. Here the optimizer reads the bfloat16 gradient and writes the bfloat16 weight next to its float32 master,
which moves 12 bytes less per weight and step. Matmuls see the same bfloat16 operands as under autocast.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from cs336_systems import private
from cs336_systems.checks import require_ordered
from cs336_systems.optimizer.adamw import AdamWRule, adamw_update
from cs336_systems.optimizer.loading import load_between_hooks


class MasterWeightAdamW(torch.optim.Optimizer):
    """AdamW for float32 and bfloat16 parameters, with all of its state in float32.

    Runs one Triton kernel per parameter on CUDA and PyTorch elsewhere. It can be captured in a CUDA graph.

    A master takes over what others have written into its weight since the last step, as by the model's
    `load_state_dict`; not what was written past autograd's version counter, through `.data`, nor under a CUDA graph.

    Args:
        params: float32 or bfloat16 parameters, or parameter groups.
        lr: learning rate; a CUDA graph keeps the value with which it was captured.
        betas, eps, weight_decay: see `AdamWRule`.

    Raises:
        ValueError: a parameter of another dtype or that is not contiguous; a hyperparameter outside of its range, or
            changed to one that is no finite number; a sparse gradient; in `load_state_dict`, options of torch's AdamW
            that are not here, or state that does not fit its parameter.
        TypeError: a set of parameters, by whose order saved state finds them.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        require_ordered(params)
        self._versions: dict[Tensor, int] = {}
        super().__init__(params, AdamWRule(lr, betas, eps, weight_decay)._asdict())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a saved state, since which others may have written into the parameters."""
        super().__setstate__(state)
        self._versions = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Check and add parameters and their hyperparameters."""
        require_ordered(param_group)
        super().add_param_group(param_group)
        try:
            _check(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def round(self, parameter: Tensor) -> None:
        """Round a float32 parameter to bfloat16 in place, and keep what it was as its master."""
        if parameter.dtype != torch.float32:
            raise ValueError(f"a parameter of {parameter.dtype} was given to round; allowed: float32")
        if all(parameter is not each for each in self._parameters()):
            raise ValueError("a parameter that is in no group was given to round; allowed: one of this optimizer's")
        self.state[parameter]["master"] = parameter.data
        parameter.data = parameter.data.bfloat16()
        self._versions[parameter] = private.version(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return the closure's result."""
        for group in self.param_groups:
            _check_options(group)  # others may have changed them
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updated = [[each for each in group["params"] if each.grad is not None] for group in self.param_groups]
        for parameter in itertools.chain(*updated):
            if parameter.grad.is_sparse:
                raise ValueError("a sparse gradient was given; allowed: dense gradients")
            _check_parameter(parameter)  # `model.to` may have changed it
        for group, parameters in zip(self.param_groups, updated, strict=True):
            states = [self._state_of(parameter) for parameter in parameters]
            private.add_to_each([state["step"] for state in states], 1)
            rule = AdamWRule(*_numbers_of(group))
            for parameter, state in zip(parameters, states, strict=True):
                update = _update_triton if parameter.is_cuda else adamw_update
                update(parameter, parameter.grad, state, rule)
                self._versions[parameter] = private.version(parameter)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load all of the state in float32; torch would round that of bfloat16 parameters to bfloat16."""
        load_between_hooks(self, super().load_state_dict, state_dict, self._load_state, self._check_loaded)

    def _check_loaded(self, whole: dict[str, Any]) -> None:
        for group in whole["param_groups"]:
            _check_options(group)
        for number, parameter in zip(_numbers(whole), self._parameters(), strict=False):  # torch refuses other numbers
            _check_state(number, parameter, whole["state"].get(number, {}))

    def _load_state(self, whole: dict[str, Any]) -> None:
        parameters = dict(zip(_numbers(whole), self._parameters(), strict=True))
        for key, state in whole["state"].items():
            if (parameter := parameters.get(key)) is None:
                self.state[key] = state  # that of no parameter
            else:
                self.state[parameter] = {name: _widened(value, parameter) for name, value in state.items()}

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
        if parameter.dtype != torch.float32 or "master" in state:
            self._follow(parameter, state)
        return state

    def _follow(self, parameter: Tensor, state: dict[str, Tensor]) -> None:
        """Give a parameter its master, or one that has been written to since the last update its new values."""
        if "master" not in state:
            state["master"] = parameter.float()
        elif self._versions.get(parameter) != private.version(parameter):
            is_old = state["master"].to(parameter.dtype) == parameter
            state["master"].copy_(torch.where(is_old, state["master"], parameter))


def master_weight_adamw(model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.01) -> MasterWeightAdamW:
    """Round `model`'s linear weights to bfloat16 in place and keep the originals as the optimizer's master weights.

    Norms, embeddings and weights that a linear layer shares with another kind of layer (tied embeddings) stay float32,
    so the residual stream keeps its precision. Run the model under bfloat16 autocast.
    """
    others = {
        parameter
        for module in model.modules()
        if not isinstance(module, nn.Linear)
        for parameter in module.parameters(recurse=False)
    }
    optimizer = MasterWeightAdamW(model.parameters(), lr=lr, weight_decay=weight_decay)  # refuses before it rounds
    for module in model.modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight") if isinstance(module, nn.Linear) else None
        if weight is not None and weight not in others and weight.dtype == torch.float32:
            optimizer.round(weight)
    return optimizer


def _check(group: dict[str, Any]) -> None:
    for parameter in group["params"]:
        _check_parameter(parameter)
    _check_options(group)
    for name in ("lr", "eps", "weight_decay"):
        if group[name] < 0:
            raise ValueError(f"{name}={group[name]!r} was given; allowed: a finite number of at least 0")


def _check_parameter(parameter: Tensor) -> None:
    if parameter.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"a parameter of {parameter.dtype} was given; allowed: float32, bfloat16")
    if not parameter.is_contiguous():
        raise ValueError(f"a parameter with strides {parameter.stride()} was given; allowed: contiguous ones")


def _check_options(group: dict[str, Any]) -> None:
    """Raise `ValueError` for options, also of a saved state of torch's, that the update lacks or does not follow."""
    missing = [name for name in AdamWRule._fields if name not in group]
    if missing:
        raise ValueError(f"a group without {', '.join(missing)} was given; allowed: groups of AdamW's options")
    for name, allowed in (("maximize", False), ("amsgrad", False), ("decoupled_weight_decay", True)):
        if bool(group.get(name, allowed)) != allowed:
            raise ValueError(f"{name}={group[name]!r} was given; allowed: {allowed}")
    for name in ("lr", "eps", "weight_decay"):  # a scheduler's last lr may be a hair below 0
        if not _is_finite(group[name]):
            raise ValueError(f"{name}={group[name]!r} was given; allowed: a finite number of at least 0")
    betas = group["betas"]
    are_two = isinstance(betas, tuple | list) and len(betas) == 2
    if not are_two or not all(_is_finite(beta) and 0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas={betas!r} was given; allowed: two numbers from 0 to below 1")


def _is_finite(value: object) -> bool:
    """Whether `value` is a finite number, of numpy or of Python; a tensor would be the kernel's pointer."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


def _numbers_of(group: dict[str, Any]) -> tuple[float, tuple[float, float], float, float]:
    """Return a group's hyperparameters, in the order of `AdamWRule`, in Python's float, which the kernel takes."""
    beta1, beta2 = group["betas"]
    return float(group["lr"]), (float(beta1), float(beta2)), float(group["eps"]), float(group["weight_decay"])


def _numbers(state_dict: dict[str, Any]) -> list[int]:
    """Return the numbers that a saved state gives to parameters, in their order."""
    return [number for group in state_dict["param_groups"] for number in group["params"]]


def _widened(value: Any, parameter: Tensor) -> Tensor:
    """Return a copy in float32 and contiguous, on the parameter's device."""
    return torch.as_tensor(value).to(parameter.device, torch.float32, copy=True, memory_format=torch.contiguous_format)


def _check_state(number: int, parameter: Tensor, state: dict[str, Any]) -> None:
    """Raise `ValueError` for saved state of another parameter, which the kernel would read and write out of bounds."""
    needed = {"step", "exp_avg", "exp_avg_sq"}
    missing = needed - state.keys()
    if missing and missing != needed:
        raise ValueError(f"parameter {number} has state without {', '.join(sorted(missing))}; allowed: all or none")
    for key, value in state.items():
        saved = torch.as_tensor(value)
        if saved.numel() != 1 if key == "step" else saved.shape != parameter.shape:
            allowed = "one number" if key == "step" else f"the parameter's, {tuple(parameter.shape)}"
            raise ValueError(f"{key} of parameter {number} has shape {tuple(saved.shape)}; allowed: {allowed}")


def _update_triton(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], rule: AdamWRule) -> None:
    from cs336_systems.optimizer.adamw_kernel import adamw_update_triton  # imported here because Triton may be missing

    adamw_update_triton(weight, gradient, state, rule)
