"""AdamW over float32 master weights, for a model that holds its matrices in bfloat16 (Micikevicius et al. 2018).

Autocast rounds every float32 matrix to bfloat16 in every forward, and widens every gradient to float32 for the
optimizer. Here the optimizer reads the bfloat16 gradient and writes the bfloat16 weight beside its float32 one: 12
bytes less for every weight and step. The numbers are those of autocast: products see the same bfloat16 operands.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from cs336_systems.optimizer.adamw import AdamWRule, adamw_update
from cs336_systems.private import training as private


class MasterWeightAdamW(torch.optim.Optimizer):
    """AdamW whose parameters may be bfloat16; everything it keeps is float32.

    On CUDA one Triton kernel a parameter; elsewhere PyTorch. It can be captured in a CUDA graph.

    Args:
        params: float32 or bfloat16 parameters, or groups of them.
        lr: a number: a CUDA graph holds the value that it was captured with.
        betas, eps, weight_decay: see `AdamWRule`.

    Raises:
        ValueError: a parameter of another dtype or that is not contiguous; a sparse gradient.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        super().__init__(params, AdamWRule(lr, betas, eps, weight_decay)._asdict())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; checks the parameters."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dtype not in (torch.float32, torch.bfloat16):
                raise ValueError(f"a parameter of {parameter.dtype} was given; allowed: float32, bfloat16")
            if not parameter.is_contiguous():
                raise ValueError(f"a parameter with strides {parameter.stride()} was given; allowed: contiguous ones")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if any(parameter.grad.is_sparse for parameter in parameters):
                raise ValueError("a sparse gradient was given; allowed: dense ones")
            states = [self._state_of(parameter) for parameter in parameters]
            private.add_to_each([state["step"] for state in states], 1)
            rule = AdamWRule(*(group[name] for name in AdamWRule._fields))
            for parameter, state in zip(parameters, states, strict=True):
                update = _update_triton if parameter.is_cuda else adamw_update
                update(parameter, parameter.grad, state, rule)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which would round what is kept for a bfloat16 parameter to bfloat16."""
        super().load_state_dict(state_dict)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(saved, parameters, strict=True):
            for key, value in state_dict["state"].get(number, {}).items():
                self.state[parameter][key] = value.to(parameter.device, copy=True)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
        if parameter.dtype != torch.float32 and "master" not in state:
            state["master"] = parameter.float()
        return state


def master_weight_adamw(model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.01) -> MasterWeightAdamW:
    """Rounds `model`'s linear weights to bfloat16, in place, and keeps what they were as master weights.

    What a linear layer shares with another kind of layer (tied embeddings) stays float32, like norms and embeddings:
    the residual stream keeps its precision. Run the model under bfloat16 autocast.
    """
    others = {
        parameter
        for module in model.modules()
        if not isinstance(module, nn.Linear)
        for parameter in module.parameters(recurse=False)
    }
    masters = {}
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight not in others and module.weight.dtype == torch.float32:
            masters[module.weight] = module.weight.data
            module.weight.data = module.weight.data.bfloat16()
    optimizer = MasterWeightAdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    for weight, master in masters.items():
        optimizer.state[weight]["master"] = master
    return optimizer


def _update_triton(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], rule: AdamWRule) -> None:
    from cs336_systems.optimizer.adamw_kernel import adamw_update_triton  # Triton is not everywhere

    adamw_update_triton(weight, gradient, state, rule)
