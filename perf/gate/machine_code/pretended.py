"""Pretend that this process has a GPU: tensors on the CPU say that they are on one, and kernels are not launched.

A commit then plans its launches for that GPU by its own code. No result is computed: memory is left as allocated.
"""

import contextlib
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from perf.gate.machine_code.targets import Target

FACTORIES = ("arange", "empty", "empty_like", "empty_strided", "full", "ones", "tensor", "zeros", "zeros_like")

Compile = Callable[[Any, Any, dict[str, Any]], None]
"""Called with a kernel's source and its arguments' types, the target and the options, instead of the compiler."""

Launch = Callable[[Any, tuple[Any, ...]], None]
"""Called with the grid and the arguments, instead of a launch of what was compiled last."""


def pretend(target: Target, compile_instead: Compile, launch_instead: Launch) -> None:
    """Give this process the GPU `target` from now on. Call it before importing the measured package."""
    import triton.compiler
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITCallable, JITFunction

    gpu = torch.device("cuda", 0)
    properties = SimpleNamespace(
        name=target.name,
        major=target.capability // 10,
        minor=target.capability % 10,
        multi_processor_count=target.multiprocessors,
        shared_memory_per_block_optin=target.shared_bytes,
        L2_cache_size=target.l2_bytes,
    )
    _replace(torch.cuda, "is_available", lambda: True)
    _replace(torch.cuda, "current_device", lambda: 0)
    _replace(torch.cuda, "device", lambda device: contextlib.nullcontext())
    _replace(torch.cuda, "get_device_properties", lambda device=None: properties)
    _replace(torch.cuda, "get_device_capability", lambda device=None: (properties.major, properties.minor))
    _replace(torch.Tensor, "device", property(lambda tensor: gpu))
    _replace(torch.Tensor, "is_cuda", property(lambda tensor: True))
    for name in FACTORIES:
        _replace(torch, name, _on_the_cpu(getattr(torch, name)))
    for name in ("rand", "randn"):  # 0.5 s for a large tensor
        _replace(torch, name, torch.empty)
    convert = torch.Tensor.to

    def converted(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if isinstance(dtype := (*arguments, None)[0], torch.dtype) and not tensor.requires_grad:
            return torch.empty_like(tensor, dtype=dtype)
        return convert(tensor, *arguments, **options)

    _replace(torch.Tensor, "to", converted)
    make_generator = torch.Generator

    class Generator:  # a class, because annotations name it
        def __new__(cls, device: Any = "cpu") -> Any:
            return make_generator()

    _replace(torch, "Generator", Generator)

    active = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", target.capability, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
    )
    driver.set_active(active)
    # A digest of a kernel's source with its line would differ wherever a line above it moved.
    _replace(JITCallable, "starting_line_number", property(lambda kernel: 0, lambda kernel, line: None))
    _replace(triton.compiler, "compile", lambda source, target, options: compile_instead(source, target, options))
    run = JITFunction.run

    def specialize(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        kernel.device_caches.clear()  # or a second launch alike would not reach the compiler
        run(kernel, *arguments, grid=grid, warmup=True, **constants)
        if not warmup:
            launch_instead(grid, arguments)

    _replace(JITFunction, "run", specialize)


class Operators(TorchDispatchMode):
    """Call `note` with each operator of torch's that runs inside the block, but views: its name and shapes."""

    def __init__(self, note: Callable[[str], None]):
        super().__init__()
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not getattr(func, "is_view", False):
            self._note(f"{func} {tree_map_only(torch.Tensor, lambda tensor: tuple(tensor.shape), args)}")
        return func(*args, **(kwargs or {}))


def _replace(owner: Any, name: str, by: Any) -> None:
    setattr(owner, name, by)


def _on_the_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def on_the_cpu(*arguments: Any, device: Any = None, generator: Any = None, **options: Any) -> Any:
        return make(*arguments, **options)

    return on_the_cpu
