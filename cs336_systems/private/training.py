"""Private parts of torch in a training step: operations over many tensors, and collectives in one launch.

Where a name is gone or takes other arguments, the plain way is taken from then on, with one warning.
"""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Result = TypeVar("Result")

STEP_SUPPORTS_AMP_SCALING = "_step_supports_amp_scaling"
"""The attribute by which an optimizer tells `torch.amp.GradScaler` to leave `grad_scale` and `found_inf` to its step.

It buys a decision about an overflow that all ranks share. A scaler that ignored it would skip the step on the ranks
that overflowed and no others; use `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler` then.
"""

CHANGES = (AttributeError, TypeError, NotImplementedError)
"""How a name fails that is gone or takes other arguments."""

unavailable: set[str] = set()
"""Names that failed in this process: warned of, and not tried again."""


def divide_each(tensors: list[Tensor], divisor: float | Tensor) -> None:
    """Divide each tensor in place. `torch._foreach_div_` buys one launch for all; without it each has its own."""

    def plainly() -> None:
        for tensor in tensors:
            tensor.div_(divisor)

    if tensors:
        _attempt("torch._foreach_div_", lambda: torch._foreach_div_(tensors, divisor), plainly)


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target. `torch._foreach_copy_` buys one launch for all; without it each has its own."""

    def plainly() -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    if targets:
        _attempt("torch._foreach_copy_", lambda: torch._foreach_copy_(targets, sources), plainly)


def add_to_each(tensors: list[Tensor], number: float) -> None:
    """Add to each tensor in place. `torch._foreach_add_` buys one launch for all; without it each has its own."""

    def plainly() -> None:
        for tensor in tensors:
            tensor.add_(number)

    if tensors:
        _attempt("torch._foreach_add_", lambda: torch._foreach_add_(tensors, number), plainly)


def all_reduce_coalesced(
    tensors: list[Tensor], operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None
) -> list[Any]:
    """Start to all-reduce tensors of one dtype and device; returns the works to wait for.

    `ProcessGroup.allreduce_coalesced`, which torch does not document, buys one launch for all of them; without it there
    is one all-reduce for each. `dist._coalescing_manager` calls it too, but after an error inside it every later
    all-reduce of the group is silently left out.
    """

    def at_once() -> list[Any]:
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = operation  # type: ignore[assignment]
        options.asyncOp = True
        real = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
        return [_members(group).allreduce_coalesced(real, options)]

    def plainly() -> list[Any]:
        return [dist.all_reduce(tensor, operation, group=group, async_op=True) for tensor in tensors]

    return _attempt("ProcessGroup.allreduce_coalesced", at_once, plainly)


def start_together(start: Callable[[], list[Any]], group: dist.ProcessGroup | None, device: torch.device) -> list[Any]:
    """Call `start`, which starts collectives on `device` and returns their works; returns the works to wait for.

    `ProcessGroup._start_coalescing` and `_end_coalescing` buy one launch for all of them with NCCL; without them each
    has its own.
    """

    def begin() -> Callable[[torch.device], Any]:
        members = _members(group)
        end = members._end_coalescing
        members._start_coalescing(device)
        return end

    end = _attempt("ProcessGroup._start_coalescing", begin, lambda: None, (*CHANGES, RuntimeError))
    if end is None:
        return start()
    try:
        start()
    finally:  # else the group would hold back every later collective
        together = end(device)
    return [together]


def _attempt(
    name: str,
    fast: Callable[[], Result],
    plainly: Callable[[], Result],
    changes: tuple[type[Exception], ...] = CHANGES,
) -> Result:
    if name not in unavailable:
        try:
            return fast()
        except changes as error:
            unavailable.add(name)
            warnings.warn(
                f"{name} of torch {torch.__version__} is gone or has changed ({error}): a slower way is taken",
                stacklevel=3,
            )
    return plainly()


def _members(group: dist.ProcessGroup | None) -> Any:
    return dist.group.WORLD if group is None else group
