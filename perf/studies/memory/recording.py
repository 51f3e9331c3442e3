"""Record every allocation and release of one pass, marked with its phases."""

import gc
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from perf.harness.clock import no_garbage_collection
from perf.harness.memory import allocator_trace

MAX_ENTRIES = 1_000_000

STEP = ("zero_grad", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Recording:
    """One pass, in the entries of torch's CUDA allocator by phase: action, addr, size and frames, innermost first.

    An entry's size is the requested size. The allocator rounds up (to 512 bytes, and by up to 1 MiB where the rest of
    a block is too small to split off), so that the allocated bytes are somewhat more.
    """

    phases: list[tuple[str, list[dict[str, Any]]]]
    baseline_bytes: int
    """Requested bytes alive before the first entry."""

    allocated_bytes: tuple[int, int] | None = None
    """torch's count before the pass and at its peak; None on a CPU, which does not round."""


def forward_alone(train: Any) -> Iterator[str]:
    """Run a forward that keeps nothing for a backward; yield its phase before it begins."""
    import torch

    yield "forward"
    with torch.no_grad():
        train.forward()


def whole_step(train: Any) -> Iterator[str]:
    """Run `TrainStep.step`; yield each phase before it begins."""
    yield "zero_grad"
    train.optimizer.zero_grad(set_to_none=True)
    yield "forward"
    loss = train.forward()
    yield "backward"
    train.backward(loss)
    yield "optimizer"
    train.optimizer_step()


def record(phases: Iterator[str], train: Any, snapshot: Path | None) -> Recording:
    """Run `phases` and record their allocations; on a GPU write `snapshot` for the page memory_viz."""
    import torch

    gc.collect()
    with no_garbage_collection():
        return _on_gpu(phases, snapshot) if torch.cuda.is_available() else _on_cpu(phases, train)


def held_bytes(train: Any) -> dict[str, int]:
    """Return the bytes that stay from step to step: parameters, gradients, optimizer state, buffers and batch."""
    sizes: dict[str, int] = {}
    counted: set[int] = set()
    for owner, tensors in _held(train).items():
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        sizes[owner] = sum(size for key, size in storages.items() if key not in counted)
        counted |= storages.keys()
    return sizes


def gradient_addresses(train: Any) -> dict[int, str]:
    """Return the address of each gradient and the name of its parameter, with * for the layer's number."""
    return {
        parameter.grad.untyped_storage().data_ptr(): "gradient of "
        + ".".join("*" if part.isdigit() else part for part in name.split("."))
        for name, parameter in train.model.named_parameters()
        if parameter.grad is not None
    }


def _on_gpu(phases: Iterator[str], snapshot: Path | None) -> Recording:
    import torch

    memory = torch.cuda.memory
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # a cached block that is too large would be used and counted whole
    torch.cuda.reset_peak_memory_stats()
    requested, allocated = torch.cuda.memory_stats()["requested_bytes.all.current"], torch.cuda.memory_allocated()
    # As in the course, but with Python's frames alone, like the harness's records.
    memory._record_memory_history(stacks="python", max_entries=MAX_ENTRIES, clear_history=True)
    try:
        starts = {phase: len(allocator_trace()) for phase in _settled(phases)}
        peak, trace = torch.cuda.max_memory_allocated(), allocator_trace()
        if snapshot:
            _dump(snapshot)
    finally:
        memory._record_memory_history(enabled=None)
    ends = [*starts.values(), len(trace)][1:]
    by_phase = [(phase, trace[start:end]) for (phase, start), end in zip(starts.items(), ends, strict=True)]
    return Recording(by_phase, requested, (allocated, peak))


def _settled(phases: Iterator[str]) -> Iterator[str]:
    """Synchronize the device before and after each phase."""
    import torch

    for phase in phases:
        torch.cuda.synchronize()
        yield phase
    torch.cuda.synchronize()


def _dump(path: Path) -> None:
    import torch

    try:
        torch.cuda.memory._dump_snapshot(str(path))
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def _on_cpu(phases: Iterator[str], train: Any) -> Recording:
    """Record the lifetimes of tensors' storages, since a CPU's allocator has no history."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    by_phase: list[tuple[str, list[dict[str, Any]]]] = []
    watched: dict[int, weakref.finalize] = {}
    baseline = 0

    def released(key: int, address: int, size: int) -> None:
        del watched[key]
        by_phase[-1][1].append({"action": "free_completed", "addr": address, "size": size, "frames": []})

    def watch(tensor: Tensor) -> tuple[int, int] | None:
        """Return address and size of a new storage."""
        storage = tensor.untyped_storage()
        key, address, size = storage._cdata, storage.data_ptr(), storage.nbytes()
        if key in watched:
            return None
        watched[key] = weakref.finalize(storage, released, key, address, size)
        return address, size

    def was_there(tensors: Any) -> None:
        nonlocal baseline
        for tensor in tensors:
            if isinstance(tensor, Tensor) and (new := watch(tensor)):
                baseline += new[1]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            was_there(tree_leaves((args, kwargs)))
            out = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor) and (new := watch(tensor)):
                    entry = {"action": "alloc", "addr": new[0], "size": new[1], "frames": _frames()}
                    by_phase[-1][1].append(entry)
            return out

    for tensors in _held(train).values():
        was_there(tensors)
    try:
        with Watch():
            for phase in phases:
                by_phase.append((phase, []))
    finally:
        for finalizer in list(watched.values()):
            finalizer.detach()
    return Recording(by_phase, baseline)


def _frames() -> list[dict[str, Any]]:
    """Return the stack of the operation's caller, innermost first, as the CUDA allocator does."""
    frame, frames = sys._getframe(2), []
    while frame is not None:
        code = frame.f_code
        frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return frames


def _held(train: Any) -> dict[str, list[Any]]:
    from torch import Tensor

    parameters = list(train.model.parameters())
    states = [value for state in train.optimizer.state.values() for value in state.values()]
    return {
        "parameters": parameters,
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer_state": [value for value in states if isinstance(value, Tensor)],
        "buffers_and_batch": [*train.model.buffers(), train.ids, train.targets],
    }
