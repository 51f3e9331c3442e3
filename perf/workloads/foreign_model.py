"""A user's own model, checked against itself in eager float32 with eager attention."""

import functools
from typing import Any

from perf.workloads import imported, measured
from perf.workloads.transformer_oracle import ExactStep
from perf.workloads.transformer_state import slope_and_norm
from perf.workloads.workload import WrongResult


class Foreign:
    """Builder of models by `name`, module:function; all get the weights of the first."""

    def __init__(self, name: str, size_name: str, context_length: int, device: str):
        self._name, self._build = name, imported(name)
        self._context_length, self._device = context_length, device
        self._config = measured("configs", "MODEL_CONFIGS")[size_name]
        self._state: dict[str, Any] = {}
        self.modules: list[str] = []
        """Names of the modules of the first model."""

    def build(self, attention: str) -> Any:
        """Build a model with this attention, an impl of `flash_attention`. Raises `WrongResult` if it is none."""
        import torch

        attend = functools.partial(measured("attention.api", "flash_attention"), is_causal=True, impl=attention)
        torch.manual_seed(0)
        with torch.device(self._device):
            model = self._build(self._config, self._context_length, attend)
        if not isinstance(model, torch.nn.Module):
            raise WrongResult(f"{self._name} returned {type(model).__name__}; allowed: a torch.nn.Module")
        if not self._state:
            self._state = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
            self.modules = [name for name, _ in model.named_modules()]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self._state[name])
        return model

    def first(self, device: str) -> dict[str, Any]:
        """Return all weights of the first model by name, float32."""
        if not self._state:
            self.build("reference")
        return {name: weight.to(device).float() for name, weight in self._state.items()}

    def weights(self, name: str, shape: tuple[int, ...], device: str) -> Any:
        """Return a weight of the first model, like `transformer_oracle.initial`."""
        return self._state[name].to(device).float()

    def exact(self, ids: Any, targets: Any) -> ExactStep:
        """Return loss and slope of the first weights, by a second model beside the timed one."""
        model = self.build("reference")
        train = measured("training", "make_train_step")(model, ids, targets)
        loss = train.forward()
        train.backward(loss)
        return ExactStep(float(loss.detach()), slope_and_norm(model)[0])
