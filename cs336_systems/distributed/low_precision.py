"""Inputs of layers whose weights are gathered in a lower precision, and of the norms between them."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cs336_systems.distributed.buckets import tensors_in

NORMS = nn.LayerNorm, nn.GroupNorm, nn.RMSNorm


def cast_inputs(modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """Let each module cast its floating-point inputs to `dtype`."""
    for module in modules:
        module.register_forward_pre_hook(partial(_cast_inputs, dtype), with_kwargs=True)


def let_norms_follow_inputs(modules: Iterable[nn.Module]) -> None:
    """Let each norm use its weights in the dtype of its input, which gives its output the same dtype.

    Torch's fused kernels need one dtype, in which they read and write; they compute in float32. With two, an
    `RMSNorm` keeps five times as much for its backward and takes seven times as long.
    """
    for module in modules:
        if isinstance(module, NORMS):
            module.register_forward_pre_hook(_show_cast, with_kwargs=True)
            module.register_forward_hook(_hide_cast, always_call=True)


def _cast_inputs(dtype: torch.dtype, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tuple(_to(dtype, value) for value in args), {name: _to(dtype, value) for name, value in kwargs.items()}


def _show_cast(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    inputs = [value for value in tensors_in([args, kwargs]) if value.is_floating_point()]
    if inputs:
        for name, parameter in module.named_parameters(recurse=False):
            module.__dict__[name] = parameter.to(inputs[0].dtype)  # found before the parameter of this name


def _hide_cast(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    for name, _ in module.named_parameters(recurse=False):
        module.__dict__.pop(name, None)


def _to(dtype: torch.dtype, value: Any) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
