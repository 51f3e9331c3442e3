"""Private parts of torch, and one of Python: operations on many tensors, and collectives in one launch.

If a release of torch lacks a name or changes its arguments, the fallback is used from then on, with one warning.
"""

import datetime
import multiprocessing.process
import warnings
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Result = TypeVar("Result")

STEP_SUPPORTS_AMP_SCALING = "_step_supports_amp_scaling"
"""Attribute by which an optimizer asks `torch.amp.GradScaler` to leave `grad_scale` and `found_inf` to its step.

It lets all ranks agree about an overflow. A scaler that ignores it skips the step only on the ranks that overflowed;
use `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler` then.
"""

CHANGES = (AttributeError, TypeError, NotImplementedError)
"""Exceptions raised by a name that is gone or takes other arguments."""

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""New names since torch 2.13, which warns of the older ones."""

unavailable: set[str] = set()
"""Names that failed in this process. Each was warned of once and is not tried again."""


def divide_each(tensors: list[Tensor], divisor: float | Tensor) -> None:
    """Divide each tensor in place, in one launch with `torch._foreach_div_`."""

    def fallback() -> None:
        for tensor in tensors:
            tensor.div_(divisor)

    if tensors:
        _attempt("torch._foreach_div_", lambda: torch._foreach_div_(tensors, divisor), fallback)


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, in one launch with `torch._foreach_copy_`."""

    def fallback() -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    if targets:
        _attempt("torch._foreach_copy_", lambda: torch._foreach_copy_(targets, sources), fallback)


def add_to_each(tensors: list[Tensor], number: float) -> None:
    """Add a number to each tensor in place, in one launch with `torch._foreach_add_`."""

    def fallback() -> None:
        for tensor in tensors:
            tensor.add_(number)

    if tensors:
        _attempt("torch._foreach_add_", lambda: torch._foreach_add_(tensors, number), fallback)


def all_reduce_coalesced(
    tensors: list[Tensor], operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None
) -> list[Any]:
    """Start to all-reduce tensors of one dtype and device; return the works to wait for.

    `ProcessGroup.allreduce_coalesced`, which torch does not document, launches them together; the fallback is one
    all-reduce per tensor. `dist._coalescing_manager` makes the same call, but after an error inside it torch silently
    drops every later all-reduce of the group.
    """

    def coalesced() -> list[Any]:
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = operation  # type: ignore[assignment]
        options.asyncOp = True
        return [whole_group(group).allreduce_coalesced([_real(tensor) for tensor in tensors], options)]

    def fallback() -> list[Any]:
        return [dist.all_reduce(tensor, operation, group=group, async_op=True) for tensor in tensors]

    return _attempt("ProcessGroup.allreduce_coalesced", coalesced, fallback)


def _real(tensor: Tensor) -> Tensor:
    """View a complex tensor as the numbers that the coalesced calls know."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def all_gather_coalesced(pairs: Sequence[tuple[Tensor, Tensor]], group: dist.ProcessGroup | None) -> list[Any]:
    """Gather, for each pair of a whole tensor and this rank's equal share of it, as `all_gather_single`; return works.

    `ProcessGroup.all_gather_single_coalesced` launches them together; the fallback is a launch for each.
    """

    def coalesced() -> list[Any]:
        from torch._C._distributed_c10d import AllgatherOptions

        wholes, mine = [whole for whole, _ in pairs], [share for _, share in pairs]
        return _start_many(("all_gather_single", "allgather_into_tensor"), wholes, mine, AllgatherOptions(), group)

    def fallback() -> list[Any]:
        return [all_gather_single(*pair, group=group, async_op=True) for pair in pairs]

    return _attempt("ProcessGroup.all_gather_single_coalesced", coalesced, fallback)


def reduce_scatter_coalesced(
    pairs: Sequence[tuple[Tensor, Tensor]], operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None
) -> list[Any]:
    """Reduce, for each pair of a whole tensor and room for this rank's share, as `reduce_scatter_single`; return works.

    `ProcessGroup.reduce_scatter_single_coalesced` launches them together; the fallback is a launch for each.
    """

    def coalesced() -> list[Any]:
        from torch._C._distributed_c10d import ReduceScatterOptions

        options = ReduceScatterOptions()
        options.reduceOp = operation  # type: ignore[assignment]
        wholes, mine = [_real(whole) for whole, _ in pairs], [_real(room) for _, room in pairs]
        return _start_many(("reduce_scatter_single", "reduce_scatter_tensor"), mine, wholes, options, group)

    def fallback() -> list[Any]:
        return [reduce_scatter_single(mine, whole, operation, group, True) for whole, mine in pairs]

    return _attempt("ProcessGroup.reduce_scatter_single_coalesced", coalesced, fallback)


def _start_many(
    names: tuple[str, str], targets: list[Tensor], sources: list[Tensor], options: Any, group: dist.ProcessGroup | None
) -> list[Any]:
    """Start a collective of many tensors, of which torch 2.13 knows the first name and older ones the second."""
    options.asyncOp = True
    new, old = (f"{name}_coalesced" for name in names)
    start = getattr(whole_group(group), new, None) or getattr(whole_group(group), old)
    return [start(targets, sources, options)]


def start_together(start: Callable[[], list[Any]], group: dist.ProcessGroup | None, device: torch.device) -> list[Any]:
    """Call `start`, which starts collectives on `device` and returns their works; return the works to wait for.

    With NCCL, `ProcessGroup._start_coalescing` and `_end_coalescing` make them one launch; the fallback is a launch
    per collective.
    """

    def begin() -> Callable[[torch.device], Any]:
        process_group = whole_group(group)
        end = process_group._end_coalescing
        process_group._start_coalescing(device)
        return end

    end = _attempt("ProcessGroup._start_coalescing", begin, lambda: None, (*CHANGES, RuntimeError))
    if end is None:
        return start()
    try:
        start()
    finally:  # otherwise the group would hold back every later collective
        work = end(device)
    return [work]


def after_backward(callback: Callable[[], None]) -> None:
    """Call `callback` when the backward that runs now ends without an error; the fallback calls it at once."""

    def queue() -> None:
        torch.autograd.Variable._execution_engine.queue_callback(callback)

    _attempt("Engine.queue_callback", queue, callback)


def is_in_backward() -> bool:
    """Whether a backward runs in this thread. The fallback is True."""
    return _attempt("torch._C._current_graph_task_id", lambda: torch._C._current_graph_task_id() != -1, lambda: True)


def version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place, as autograd counts. The fallback is 0."""
    return _attempt("Tensor._version", lambda: tensor._version, lambda: 0)


def without_elements(like: Tensor, shape: torch.Size, refuse: Callable[..., Any]) -> Tensor:
    """Return a tensor that has a shape, and the dtype and device of `like`, but whose operations call `refuse`.

    The fallback is `like`.
    """

    class WithoutElements(Tensor):
        @classmethod
        def __torch_dispatch__(cls, *args: Any) -> Any:
            return refuse()

    def make() -> Tensor:
        return Tensor._make_wrapper_subclass(
            WithoutElements, shape, dtype=like.dtype, device=like.device, requires_grad=like.requires_grad
        )

    return _attempt("Tensor._make_wrapper_subclass", make, lambda: like)


def timeout_of(group: dist.ProcessGroup | None, device: torch.device) -> datetime.timedelta | None:
    """Return the timeout of a group's collectives on `device`; None, torch's default, where it cannot be read."""

    def read() -> datetime.timedelta | None:
        try:
            return whole_group(group)._get_backend(device).options._timeout
        except RuntimeError:  # a process group written in Python
            return None

    return _attempt("Backend.options._timeout", read, lambda: None)


def splits_communicators() -> bool:
    """Whether torch makes new groups by splitting the default group's communicator, which takes all of its ranks.

    It does once the default group was created with a `device_id`.
    """
    return getattr(whole_group(None), "bound_device_id", None) is not None


def new_group_named(name: str, ranks: list[int], timeout: datetime.timedelta | None, backend: str) -> dist.ProcessGroup:
    """Create a process group of a new name and of these ranks, in their order; they alone call this.

    The fallback is `dist.new_group`, by whose names ranks find each other only if they are in equally many groups.
    """

    def create() -> dist.ProcessGroup:
        c10d: Any = dist.distributed_c10d
        default, config = c10d.group.WORLD, dist.Backend(backend)
        _, store = c10d._world.pg_map[default]
        group, _ = c10d._new_process_group_helper(
            len(ranks),
            ranks.index(dist.get_rank()),
            ranks,
            config,
            store,
            name,
            timeout=c10d._get_default_timeout(config) if timeout is None else timeout,
            device_id=default.bound_device_id,
        )
        c10d._world.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}
        return group

    def fallback() -> dist.ProcessGroup:
        return dist.new_group(ranks, timeout, backend, use_local_synchronization=True)

    return _attempt("torch.distributed._new_process_group_helper", create, fallback)


def hide_from_other_threads(processes: Iterable[BaseProcess]) -> None:
    """Take processes out of `multiprocessing.active_children`, through which other threads read their exit codes.

    A process of the fork server has one to read: who comes second finds 255. The fallback leaves them there.
    """

    def hide() -> None:
        multiprocessing.process._children.difference_update(processes)  # type: ignore[attr-defined]

    _attempt("multiprocessing.process._children", hide, lambda: None)


def is_compiled(module: nn.Module) -> bool:
    """Whether `module.compile()` was called or the module is the result of `torch.compile`."""
    return getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules


def _attempt(
    name: str,
    fast: Callable[[], Result],
    fallback: Callable[[], Result],
    changes: tuple[type[Exception], ...] = CHANGES,
) -> Result:
    if name not in unavailable:
        try:
            return fast()
        except changes as error:
            unavailable.add(name)
            warnings.warn(
                f"{name} is gone or has changed (torch {torch.__version__}: {error}): using a fallback",
                stacklevel=3,
            )
    return fallback()


def whole_group(group: dist.ProcessGroup | None) -> Any:
    """Return the process group that None stands for, or the one given."""
    return dist.group.WORLD if group is None else group


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether `parameter.register_hook` has been called: its hooks want gradients before they are accumulated."""
    return bool(getattr(parameter, "_backward_hooks", None))


def call_post_accumulate_hooks(parameter: Tensor, but: RemovableHandle | None) -> None:
    """Call what `register_post_accumulate_grad_hook` has registered, as autograd would, except for one hook."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    for number, hook in list(hooks.items()):
        if but is None or number != but.id:
            hook(parameter)


def holds(module: nn.Module, attribute: str, parameter: nn.Parameter) -> bool:
    """Whether a module's parameter of this name is this one, whatever `module.__dict__` shows in its place."""
    return module._parameters.get(attribute) is parameter


def base_of(output: Tensor) -> Tensor:
    """Return the tensor that a layer's output is a view of, or the output: what keeps a hook whatever is done in place.

    An operation in place gives a view another node, without the hooks of its old one. Fallback: the output.
    """
    base = getattr(output, "_base", None)
    return output if base is None or not base.requires_grad else base
