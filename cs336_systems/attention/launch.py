"""Launching Triton kernels again without all that Triton looks at, and that we work out, in every call."""

import contextlib
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import torch
import triton
from torch import Tensor

_hooks = triton.knobs.runtime

P = ParamSpec("P")
T = TypeVar("T")

MOST_PLANS = 4096


class Launch:
    """kernel[(num_programs,)](*tensors, *scalars, **constants) when called with the tensors; fast from then on.

    Triton compiles for what it sees of its arguments (dtypes, alignment of pointers, whether an integer is 1, divisible
    by 16, beyond 32 bits), and looks at each of them in every launch: 130 us for 25 of them, where a kernel of 1024
    keys takes 15 (measured beside an H200, triton 3.6). So all tensors that it is called with have to be alike in what
    `layout_of` tells of them. It launches where they are, whatever the current device is.
    """

    def __init__(self, kernel: Any, num_programs: int, scalars: tuple[Any, ...], constants: dict[str, Any]):
        self.kernel, self.grid = kernel, (num_programs, 1, 1)
        self.scalars, self.constants = scalars, constants
        self._compiled: Any = None
        self._rest: tuple[Any, ...] = ()
        self._gpu: Any = None
        self._device = -1

    @property
    def is_new(self) -> bool:
        """Whether the next call compiles; under Triton's interpreter none does."""
        return self._compiled is None and isinstance(self.kernel, triton.runtime.JITFunction)

    def compile(self, *tensors: Any) -> None:
        """For a call with these, without launching."""
        with _on_device_of(tensors[0]):
            self.kernel.warmup(*tensors, *self.scalars, grid=self.grid, **self.constants)

    def __call__(self, *tensors: Any) -> None:
        """All that the kernel takes first: tensors, None for one that it does without, or tensor descriptors."""
        if self._compiled is None:
            self._first(tensors)
            return
        gpu = self._gpu
        device = gpu.get_current_device()
        if device != self._device or _is_set(_hooks.launch_enter_hook) or _is_set(_hooks.launch_exit_hook):
            with _on_device_of(tensors[0]):
                self._compiled[self.grid](*tensors, *self._rest)
            return
        compiled = self._compiled
        what = compiled.function, compiled.packed_metadata, None, None, None  # no hooks
        compiled.run(*self.grid, gpu.get_current_stream(device), *what, *tensors, *self._rest)

    def _first(self, tensors: tuple[Any, ...]) -> None:
        with _on_device_of(tensors[0]):
            compiled = self.kernel[self.grid](*tensors, *self.scalars, **self.constants)
            if torch.compiler.is_compiling():  # and to torch 2.11's compiler kernels have no type
                return
            if isinstance(self.kernel, triton.runtime.JITFunction):
                names = self.kernel.arg_names[len(tensors) + len(self.scalars) :]
                self._rest = (*self.scalars, *(self.constants[name] for name in names))
                self._gpu = triton.runtime.driver.active
                self._device = self._gpu.get_current_device()
                self._compiled = compiled


def _is_set(hook: Any) -> bool:
    """A profiler's; a chain of hooks may be empty."""
    return bool(getattr(hook, "calls", hook))


def compile_side_by_side(*calls: tuple[Launch, tuple[Any, ...]]) -> None:
    """What these launches of those tensors will compile, each in a thread of its own: in float32 one may take 3 s."""
    if torch.compiler.is_compiling() or not all(launch.is_new for launch, _ in calls):
        return
    with ThreadPoolExecutor(len(calls)) as threads, triton.AsyncCompileMode(threads):
        for launch, tensors in calls:
            launch.compile(*tensors)


class Plans(dict[Hashable, T]):
    """Those that were made, by all that each was made for."""

    def keep(self, key: Hashable, plan: T) -> T:
        """Returns the plan."""
        if len(self) >= MOST_PLANS:  # of shapes that come once
            self.clear()
        self[key] = plan
        return plan


def constant_to_compiler(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compiler.assume_constant_result` without its import of torch's compiler: 1 s of a process' first call."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def layout_of(*tensors: Tensor) -> Hashable:
    """What Triton may see of these, and of others that torch allocates like them."""
    seen: list[Hashable] = []
    for x in tensors:
        seen += x.device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16
    return tuple(seen)


def strides_of(*tensors: Tensor) -> Hashable:
    """What `layout_of` tells of these, if devices, dtypes and shapes are known."""
    seen: list[Hashable] = []
    for x in tensors:
        seen += x.stride(), x.data_ptr() % 16
    return tuple(seen)


def cdiv(a: int, b: int) -> int:
    """a / b rounded up, in a twentieth of the time of Triton's, which is for kernels too."""
    return -(-a // b)


def _on_device_of(x: Any) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, whatever device its pointers are on. Of a tensor or a descriptor."""
    device = x.device if isinstance(x, Tensor) else x.base.device
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
