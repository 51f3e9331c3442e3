"""Relaunch compiled Triton kernels without repeating Triton's argument inspection and our own planning."""

import contextlib
import functools
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from cs336_systems.private.kernels import DirectLaunch, direct_launch

_hooks = triton.knobs.runtime

T = TypeVar("T")

MOST_PLANS = 4096


class Launch:
    """kernel[(num_programs,)](*tensors, *scalars, **constants) when called with the tensors; fast from the second on.

    Triton compiles for what it sees of its arguments (dtypes, alignment of pointers, whether an integer is 1, divisible
    by 16, beyond 32 bits). A second launch skips that inspection (`private.direct_launch`), so all tensors of all calls
    must agree in what `layout_of` tells of them. It launches where they are, whatever the current device is.
    """

    def __init__(self, kernel: Any, num_programs: int, scalars: tuple[Any, ...], constants: dict[str, Any]):
        self.kernel, self.grid = kernel, (num_programs, 1, 1)
        self.scalars, self.constants = scalars, constants
        self._is_compiled = False
        self._direct: DirectLaunch | None = None
        self._on_stream: dict[int, Callable[..., None]] = {}

    @property
    def is_new(self) -> bool:
        """Whether the next call compiles; under Triton's interpreter none does."""
        return not self._is_compiled and isinstance(self.kernel, triton.runtime.JITFunction)

    def compile(self, *tensors: Any) -> None:
        """Compile for a call with these, without launching."""
        with _on_device_of(tensors[0]):
            self.kernel.warmup(*tensors, *self.scalars, grid=self.grid, **self.constants)

    def __call__(self, *tensors: Any) -> None:
        """All that the kernel takes first: tensors, None for one that it does without, or tensor descriptors."""
        direct = self._direct
        if direct is None:
            self._through_triton(tensors)
            return
        gpu = direct.gpu
        device = gpu.get_current_device()
        enter, leave = _hooks.launch_enter_hook, _hooks.launch_exit_hook  # a profiler's; a chain of hooks may be empty
        if device != direct.device or getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            with _on_device_of(tensors[0]):
                direct.compiled[self.grid](*tensors, *direct.rest)
            return
        stream = gpu.get_current_stream(device)
        run = self._on_stream.get(stream) or self._bind(direct, stream)
        if direct.as_one_tuple:
            run((*tensors, *direct.rest))
        else:
            run(*tensors, *direct.rest)

    def _bind(self, direct: DirectLaunch, stream: int) -> Callable[..., None]:
        """Return a launch on `stream`, which lacks only what is given to the kernel."""
        self._on_stream[stream] = run = functools.partial(direct.run, *self.grid, stream, *direct.fixed)
        return run

    def _through_triton(self, tensors: tuple[Any, ...]) -> None:
        with _on_device_of(tensors[0]):
            compiled = self.kernel[self.grid](*tensors, *self.scalars, **self.constants)
            # None where torch's compiler, Triton's interpreter or a hook of Triton's has taken the call.
            if compiled is not None and not self._is_compiled:
                self._is_compiled = True
                self._direct = direct_launch(self.kernel, compiled, tensors, self.scalars, self.constants)


def compile_side_by_side(*calls: tuple[Launch, tuple[Any, ...]]) -> None:
    """Compile what these launches of those tensors need, each in a thread of its own: in float32 one may take 3 s.

    It raises what a compilation raises, and leaves nothing of it behind. Triton's own AsyncCompileMode would: it stays
    set where a compilation fails, and keeps the failed one in the kernel's cache.
    """
    if torch.compiler.is_compiling() or not all(launch.is_new for launch, _ in calls):
        return
    with ThreadPoolExecutor(len(calls)) as threads:
        for compilation in [threads.submit(launch.compile, *tensors) for launch, tensors in calls]:
            compilation.result()


class Plans(dict[Hashable, T]):
    """Those that were made, by all that each was made for."""

    def keep(self, key: Hashable, plan: T) -> T:
        """Returns the plan."""
        if len(self) >= MOST_PLANS:  # of shapes that come once
            self.clear()
        self[key] = plan
        return plan


def layout_of(q: Tensor, k: Tensor, v: Tensor) -> Hashable:
    """What Triton may see of these, and of others that torch allocates like them."""
    contiguous = q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
    aligned = not (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16
    return (
        contiguous or (q.stride(), k.stride(), v.stride()),
        aligned or _alignments(q, k, v),
        (q.device, q.dtype, q.shape),
        (k.device, k.dtype, k.shape),
        (v.device, v.dtype, v.shape),
    )


def layout_of_saved(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor) -> Hashable:
    """What it may see in the backward of a call whose `layout_of` is known."""
    contiguous = q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
    contiguous = contiguous and out.is_contiguous() and lse.is_contiguous() and grad_out.is_contiguous()
    pointers = q.data_ptr() | k.data_ptr() | v.data_ptr() | out.data_ptr() | lse.data_ptr() | grad_out.data_ptr()
    return (
        contiguous or (q.stride(), k.stride(), v.stride(), out.stride(), lse.stride(), grad_out.stride()),
        not pointers % 16 or _alignments(q, k, v, out, lse, grad_out),
    )


def _alignments(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(x.data_ptr() % 16 for x in tensors)


def cdiv(a: int, b: int) -> int:
    """a / b rounded up, in a twentieth of the time of Triton's, which is for kernels too."""
    return -(-a // b)


def _on_device_of(x: Any) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, whatever device its pointers are on. Of a tensor or a descriptor."""
    device = x.device if isinstance(x, Tensor) else x.base.device
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
