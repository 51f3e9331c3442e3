"""Launching Triton kernels again without all that Triton looks at, and that we work out, in every call."""

import contextlib
import copy
import functools
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
        self._run: Any = None
        self._what: tuple[Any, ...] = ()
        self._in_one = False
        self._on_stream: dict[int, Callable[..., None]] = {}

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
        enter, leave = _hooks.launch_enter_hook, _hooks.launch_exit_hook  # a profiler's; a chain of hooks may be empty
        if device != self._device or getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            with _on_device_of(tensors[0]):
                self._compiled[self.grid](*tensors, *self._rest)
            return
        stream = gpu.get_current_stream(device)
        run = self._on_stream.get(stream) or self._bind(stream)
        if self._in_one:
            run((*tensors, *self._rest))
        else:
            run(*tensors, *self._rest)

    def _bind(self, stream: int) -> Callable[..., None]:
        """A launch on it, but for what is given to the kernel: its many arguments are put in a row in C."""
        self._on_stream[stream] = run = functools.partial(self._run, *self.grid, stream, *self._what)
        return run

    def _first(self, tensors: tuple[Any, ...]) -> None:
        with _on_device_of(tensors[0]):
            compiled = self.kernel[self.grid](*tensors, *self.scalars, **self.constants)
            if compiled is None:  # torch's compiler, Triton's interpreter or a hook of Triton's has taken the call
                return
            names = self.kernel.arg_names[len(tensors) + len(self.scalars) :]
            self._rest = (*self.scalars, *(self.constants[name] for name in names))
            self._gpu = triton.runtime.driver.active
            self._device = self._gpu.get_current_device()
            self._run, self._what, self._in_one = _innermost(compiled, (*tensors, *self._rest))
            self._compiled = compiled


def _innermost(compiled: Any, given: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], bool]:
    """What launches when called with a grid's three numbers and a stream, *these, and what is `given` to the kernel.

    Triton's launcher looks for scratch memory in each call, 3 us, before it hands on to C, in an order that differs
    between releases. So it is asked once what it hands on. The last says whether `given` goes as one tuple.
    """
    launcher = compiled.run
    what = compiled.function, compiled.packed_metadata, None, None, None  # no hooks
    if getattr(launcher, "global_scratch_size", True) or getattr(launcher, "profile_scratch_size", True):
        return launcher, what, False
    asked = copy.copy(launcher)
    handed_on: list[Any] = []
    asked.launch = lambda *arguments: handed_on.extend(arguments)
    asked(1, 1, 1, 0, *what, *given)
    in_one = isinstance(handed_on[-1], tuple)
    return launcher.launch, tuple(handed_on[4 : -1 if in_one else -len(given)]), in_one


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
