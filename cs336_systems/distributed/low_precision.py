"""Inputs of layers whose weights are gathered in a lower precision, and of the norms between them."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def cast_inputs(modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """Let each module cast its floating-point inputs to `dtype`."""
    for module in modules:
        module.register_forward_pre_hook(partial(_cast_inputs, dtype), with_kwargs=True)


def let_norms_keep_theirs(modules: Iterable[nn.Module]) -> None:
    """Let each norm with weights cast its inputs to their dtype, and its output back to that of its input.

    Torch's norms refuse inputs of another dtype on CUDA, but not on the CPU.
    """
    for module in modules:
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)) and module.weight is not None:
            dtypes: list[torch.dtype] = []
            module.register_forward_pre_hook(partial(_note_and_cast_inputs, dtypes), with_kwargs=True)
            module.register_forward_hook(partial(_cast_output, dtypes))


def _cast_inputs(dtype: torch.dtype, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tuple(_to(dtype, value) for value in args), {name: _to(dtype, value) for name, value in kwargs.items()}


def _note_and_cast_inputs(dtypes: list[torch.dtype], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtypes[:] = [value.dtype for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return _cast_inputs(module.weight.dtype, module, args, kwargs)


def _cast_output(dtypes: list[torch.dtype], module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return _to(dtypes[0], output) if dtypes else output


def _to(dtype: torch.dtype, value: Any) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
