"""Identical models on all ranks: verification and broadcast."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cs336_systems.checks import require_dense
from cs336_systems.distributed.buckets import gradient_dtype
from cs336_systems.distributed.process_group import from_all_ranks, global_rank
from cs336_systems.memory import materialized

Specification = tuple[str, tuple[int, ...], str, bool, tuple[int, ...] | None]
"""Name, shape, dtype, requires_grad and, where they matter, strides of a parameter or buffer."""


class Wrapper(nn.Module):
    """Base of the modules that average a model's gradients. Their states have no prefix of their own."""

    module: nn.Module

    is_replaced = False
    """Whether the same module has been wrapped again."""

    def __init__(self, module: nn.Module):
        super().__init__()
        _refuse_wrapped(module)
        self.module = module

    def _own(self) -> None:
        """Replace wrappers of the same module; others refuse its parameters as long as this one exists."""
        for wrapper in _owning:
            wrapper.is_replaced |= wrapper.module is self.module
        self.is_replaced = False
        _owning.add(self)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Give the names in a state of the model around this wrapper the prefix by which torch looks for them."""
        mine = {name: state_dict.pop(name) for name in [*state_dict] if name.startswith(prefix)}
        state_dict.update({f"{prefix}module.{name.removeprefix(prefix)}": value for name, value in mine.items()})
        super()._load_from_state_dict(state_dict, prefix, *others)


_owning: weakref.WeakSet[Wrapper] = weakref.WeakSet()


def _refuse_wrapped(module: nn.Module) -> None:
    """Raise `ValueError` if a part or parameter is in another wrapper: its gradients would be averaged twice."""
    for name, part in module.named_modules():
        if isinstance(part, Wrapper):
            raise ValueError(
                f"{name or 'a model'} was given in {type(part).__name__}; allowed: a model without a wrapper"
            )
    for wrapper in [one for one in _owning if one.module is not module and not one.is_replaced]:
        wrapped = set(wrapper.parameters())
        for name, value in module.named_parameters():
            if value.requires_grad and value in wrapped:
                raise ValueError(
                    f"{name} was given, a parameter of a model in {type(wrapper).__name__}; "
                    "allowed: one wrapper around all models that share it, or another once that one is deleted"
                )


def refuse_without_values(module: nn.Module) -> None:
    """Raise `ValueError` for a parameter or buffer that is lazy, on the meta device, sparse or nested."""
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(value) or value.is_meta:
            raise ValueError(f"{name} was given without values; allowed: a model that was initialized or loaded")
        require_dense(**{name: value})


def verify_same_model(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Raise the same `RuntimeError`, naming rank and tensor, on every rank if the ranks hold different models."""
    verify_same_tensors([*module.named_parameters(), *module.named_buffers()], group)


def verify_same_tensors(
    named: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None = None, *, as_in_memory: bool = False
) -> None:
    """Raise the same `RuntimeError`, naming rank and tensor, on every rank if these tensors differ but for values.

    With `as_in_memory` also if their elements lie in memory in another order.
    """
    strides = _order if as_in_memory else _overlap
    ours = [(name, tuple(value.shape), _dtype(value), value.requires_grad, strides(value)) for name, value in named]
    every = from_all_ranks(ours, group)
    first = global_rank(group, 0)
    for number, other in enumerate(every):
        rank = global_rank(group, number)
        if len(other) != len(every[0]):
            raise RuntimeError(
                f"rank {rank} holds {len(other)} parameters and buffers, rank {first} {len(every[0])}; "
                "allowed: the same model on every rank"
            )
        for one, another in zip(every[0], other, strict=True):
            if one != another:
                raise RuntimeError(
                    f"rank {rank} holds {_description(another)}, rank {first} {_description(one)}; "
                    "allowed: the same model on every rank"
                )


def verify_same_arguments(arguments: str, group: dist.ProcessGroup | None = None) -> None:
    """Raise the same `RuntimeError`, naming rank and arguments, on every rank if the ranks' arguments differ."""
    every = from_all_ranks(arguments, group)
    for number, other in enumerate(every):
        if other != every[0]:
            raise RuntimeError(
                f"rank {global_rank(group, number)} wraps in {other}, rank {global_rank(group, 0)} in {every[0]}; "
                "allowed: the same on every rank"
            )


def refuse_renormalization(module: nn.Module) -> None:
    """Raise `ValueError` for an embedding whose forward changes its weight, on every rank by that rank's batch."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise ValueError(
                f"{name or type(layer).__name__} has max_norm={layer.max_norm}; "
                "allowed: None, since each rank would rescale the rows of its own batch"
            )


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Copy the values of the group's rank 0 into the tensors of every rank."""
    with torch.no_grad():
        for tensor in tensors:
            dense = materialized(tensor.detach())
            in_line = dense.as_strided((dense.numel(),), (1,))  # a single element may have any stride
            as_bytes = in_line.view(torch.uint8)  # gloo supports neither int16 nor float8
            dist.broadcast(as_bytes, src=global_rank(group, 0), group=group)
            if dense.data_ptr() != tensor.data_ptr():
                for dim, stride in enumerate(tensor.stride()):
                    if stride == 0 and tensor.shape[dim] > 1:  # expanded: in memory, and written, once
                        tensor, dense = tensor.narrow(dim, 0, 1), dense.narrow(dim, 0, 1)
                tensor.copy_(dense)


def _dtype(tensor: Tensor) -> str:
    """Describe a tensor's dtype, and that of its gradient where it is another one."""
    if not (tensor.requires_grad and tensor.is_leaf) or gradient_dtype(tensor) == tensor.dtype:
        return str(tensor.dtype)
    return f"{tensor.dtype} with gradients of {gradient_dtype(tensor)}"


def _overlap(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor with less memory than elements, which cannot hold all values of another one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    return tensor.stride() if 1 + last < tensor.numel() else None


def _order(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor that is not contiguous; no element has a neighbour in a dimension of size 1."""
    if tensor.is_contiguous():
        return None
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _description(specification: Specification) -> str:
    name, shape, dtype, requires_grad, strides = specification
    overlap = "" if strides is None else f" with strides {strides}"
    return f"{name} {list(shape)} of {dtype}{overlap}{'' if requires_grad else ' without gradient'}"
