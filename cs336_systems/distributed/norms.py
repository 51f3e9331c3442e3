"""Norms whose inputs have a lower precision than their weights, which torch's refuse on CUDA but not on the CPU."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def accept_low_precision(modules: Iterable[nn.Module]) -> None:
    """Let each norm with weights cast its inputs to their dtype, and its output back to that of its input."""
    for module in modules:
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)) and module.weight is not None:
            dtypes: list[torch.dtype] = []
            module.register_forward_pre_hook(partial(_cast_inputs, dtypes), with_kwargs=True)
            module.register_forward_hook(partial(_cast_output, dtypes))


def _cast_inputs(dtypes: list[torch.dtype], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtypes[:] = [value.dtype for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    args = tuple(_to(module.weight.dtype, value) for value in args)
    return args, {name: _to(module.weight.dtype, value) for name, value in kwargs.items()}


def _cast_output(dtypes: list[torch.dtype], module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return _to(dtypes[0], output) if dtypes else output


def _to(dtype: torch.dtype, value: Any) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) else value
