"""Every allocation and every release of one pass, marked with the pass's phases."""

import contextlib
import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

MAX_ENTRIES = 1_000_000

FORWARD = ("forward",)
STEP = ("zero_grad", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Recording:
    """One pass, in the entries of torch's CUDA allocator: action, addr, size and frames, innermost first.

    An entry's size is what was asked for. The allocator rounds up (to 512 bytes, and by up to 1 MiB where the rest of a
    block is not worth splitting off), so what counts as allocated is somewhat more.
    """

    entries: list[dict[str, Any]]
    marks: list[tuple[str, int]]
    """Each phase, and how many entries came before it."""

    baseline_bytes: int
    """Asked for and alive before the first entry."""

    allocated_baseline_bytes: int
    allocated_peak_bytes: int
    """By torch's own count; on a CPU, where nothing rounds, the same as what was asked for."""


def forward_alone(train: Any) -> Iterator[str]:
    """A forward that keeps nothing for a backward; says its phase before it begins."""
    import torch

    yield "forward"
    with torch.no_grad():
        train.forward()


def whole_step(train: Any) -> Iterator[str]:
    """`TrainStep.step`; says each phase before it begins."""
    yield "zero_grad"
    train.optimizer.zero_grad(set_to_none=True)
    yield "forward"
    loss = train.forward()
    yield "backward"
    train.backward(loss)
    yield "optimizer"
    train.optimizer_step()


def record(phases: Iterator[str], train: Any, snapshot: Path | None) -> Recording:
    """Run `phases` and note all they allocate; on a GPU `snapshot` is written for the page memory_viz."""
    import torch

    gc.collect()
    with _without_collector():
        return _on_gpu(phases, snapshot) if torch.cuda.is_available() else _on_cpu(phases, train)


def held_bytes(train: Any) -> dict[str, int]:
    """What stays from step to step, by its owner: parameters, gradients, optimizer state, buffers and batch."""
    found: dict[str, int] = {}
    counted: set[int] = set()
    for owner, tensors in _held(train).items():
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        found[owner] = sum(size for key, size in storages.items() if key not in counted)
        counted |= storages.keys()
    return found


def gradient_addresses(train: Any) -> dict[int, str]:
    """Where each gradient lies, and whose it is, with * for the layer's number."""
    return {
        parameter.grad.untyped_storage().data_ptr(): "gradient of "
        + ".".join("*" if part.isdigit() else part for part in name.split("."))
        for name, parameter in train.model.named_parameters()
        if parameter.grad is not None
    }


def workspaces() -> dict[str, int]:
    """`torch.cuda.memory_allocated()` before anything, after a first product, and after a first backward.

    cuBLAS gets a workspace per thread and stream with its first product there, and keeps it; the backward has a thread
    of its own. Held ones are given back first, so that the answer does not depend on what ran before.
    """
    import torch

    if clear := getattr(torch._C, "_cuda_clearCublasWorkspaces", None):
        clear()
    else:
        warnings.warn("this torch cannot give cuBLAS workspaces back: those held before are not counted", stacklevel=2)
    found = {"before_bytes": torch.cuda.memory_allocated()}
    x = torch.ones(128, 128, device="cuda", requires_grad=True)
    y = x @ x
    torch.cuda.synchronize()
    found["after_product_bytes"] = torch.cuda.memory_allocated() - _sizes(x, y)
    y.sum().backward()
    torch.cuda.synchronize()
    found["after_backward_bytes"] = torch.cuda.memory_allocated() - _sizes(x, y, x.grad)
    return found


def _sizes(*tensors: Any) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _on_gpu(phases: Iterator[str], snapshot: Path | None) -> Recording:
    import torch

    memory = torch.cuda.memory
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # a cached block that is too large would be handed out whole, and count so
    torch.cuda.reset_peak_memory_stats()
    asked, allocated = torch.cuda.memory_stats()["requested_bytes.all.current"], torch.cuda.memory_allocated()
    # As the course does, but with Python's frames alone, as the harness records them: those are what a reader looks up.
    memory._record_memory_history(stacks="python", max_entries=MAX_ENTRIES, clear_history=True)
    try:
        marks = [(phase, len(_trace())) for phase in _settled(phases)]
        peak, trace = torch.cuda.max_memory_allocated(), _trace()
        if snapshot:
            _dump(snapshot)
    finally:
        memory._record_memory_history(enabled=None)
    return Recording(trace, marks, asked, allocated, peak)


def _settled(phases: Iterator[str]) -> Iterator[str]:
    """Each phase begins and ends with the device at rest."""
    import torch

    for phase in phases:
        torch.cuda.synchronize()
        yield phase
    torch.cuda.synchronize()


def _trace() -> list[dict[str, Any]]:
    import torch

    traces = torch.cuda.memory._snapshot()["device_traces"]
    return traces[torch.cuda.current_device()] if traces else []


def _dump(path: Path) -> None:
    import torch

    try:
        torch.cuda.memory._dump_snapshot(str(path))
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def _on_cpu(phases: Iterator[str], train: Any) -> Recording:
    """By the lifetimes of tensors' storages: a CPU's allocator cannot be asked, but the tensors are the same."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    entries: list[dict[str, Any]] = []
    watched: dict[int, weakref.finalize] = {}
    baseline = 0

    def released(key: int, address: int, size: int) -> None:
        del watched[key]
        entries.append({"action": "free_completed", "addr": address, "size": size, "frames": []})

    def watch(tensor: Tensor) -> tuple[int, int] | None:
        """Address and size of a storage that is seen for the first time."""
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
                    entries.append({"action": "alloc", "addr": new[0], "size": new[1], "frames": _frames()})
            return out

    for tensors in _held(train).values():
        was_there(tensors)
    try:
        with Watch():
            marks = [(phase, len(entries)) for phase in phases]
    finally:
        for finalizer in list(watched.values()):
            finalizer.detach()
    peak = now = baseline
    for entry in entries:
        now += entry["size"] if entry["action"] == "alloc" else -entry["size"]
        peak = max(peak, now)
    return Recording(entries, marks, baseline, baseline, peak)


def _frames() -> list[dict[str, Any]]:
    """The stack of whoever called the operation, innermost first, as the CUDA allocator notes it."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return found


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


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """A collection in the midst of a pass would release a cycle's tensors at a moment of its own."""
    on: Callable[[], None] = gc.enable if gc.isenabled() else gc.disable
    gc.disable()
    try:
        yield
    finally:
        on()
