"""Relaunch compiled Triton kernels without repeating Triton's argument inspection and our own planning.

Also what all plans of launches share: types, outputs and sizes. Tensors in plans are (batch, heads, seq_len, d) with
contiguous head vectors, and so are outputs.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from cs336_systems.attention.private import DirectLaunch, direct_launch, load
from cs336_systems.launching import launching, on_device_of

_hooks = triton.knobs.runtime

T = TypeVar("T")

MAX_PLANS = 4096

Forward = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(q, k, v, seed of the dropout) -> out, lse in float32."""

Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]
"""(q, k, v, out, lse, gradient of out, seed of the dropout) -> dq, dk, dv."""


class Launch:
    """kernel[(num_programs,)](*tensors, *scalars, **constants) when called with tensors; fast from the second call on.

    Triton specializes on its arguments: dtypes, alignment of pointers, whether an integer is 1, divisible by 16, or
    beyond 32 bits. Later launches skip that inspection (`private.direct_launch`), so the tensors of all calls must
    agree in `kinds_of` and `layout_of`. A launch runs on the device of its tensors, whatever the current device is.
    """

    def __init__(self, kernel: Any, num_programs: int, scalars: tuple[Any, ...], constants: dict[str, Any]):
        self.kernel, self.grid = kernel, (num_programs, 1, 1)
        self.scalars, self.constants = scalars, constants
        self._is_compiled = False
        self._direct: DirectLaunch | None = None

    @property
    def is_new(self) -> bool:
        """Whether the next call compiles; under Triton's interpreter no call does."""
        return not self._is_compiled and isinstance(self.kernel, triton.runtime.JITFunction)

    def compile(self, *tensors: Any) -> None:
        """Compile and load for a call with these tensors, without launching."""
        with on_device_of(tensors[0]):
            load(self.kernel.warmup(*tensors, *self.scalars, grid=self.grid, **self.constants))

    def __call__(self, *tensors: Any) -> None:
        """Launch with the kernel's first arguments: tensors, tensor descriptors, or None for an absent tensor."""
        direct = self._direct
        if direct is None:
            self._launch_with_triton(tensors)
            return
        device = direct.gpu.get_current_device()
        enter, leave = _hooks.launch_enter_hook, _hooks.launch_exit_hook  # a profiler's; a chain of hooks may be empty
        if device != direct.device or getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            with on_device_of(tensors[0]):
                direct.compiled[self.grid](*tensors, *direct.rest)
            return
        stream = direct.gpu.get_current_stream(device)
        if direct.as_one_tuple:
            direct.run(*self.grid, stream, *direct.fixed, (*tensors, *direct.rest))
        else:
            direct.run(*self.grid, stream, *direct.fixed, *tensors, *direct.rest)

    def _launch_with_triton(self, tensors: tuple[Any, ...]) -> None:
        with launching(self.kernel, tensors[0]):
            compiled = self.kernel[self.grid](*tensors, *self.scalars, **self.constants)
            # None where Triton's interpreter or a hook of Triton's has taken the call.
            if compiled is not None and not self._is_compiled:
                self._is_compiled = True
                self._direct = direct_launch(self.kernel, compiled, tensors, self.scalars, self.constants)


Call = tuple[Launch, tuple[Any, ...]]
"""A launch, and the tensors of one call of it."""


def launch_in_turn(*calls: Call) -> None:
    """Launch one after the other; the first time, compile all of them before, side by side."""
    compile_side_by_side(*calls)
    for launch, tensors in calls:
        launch(*tensors)


def compile_side_by_side(*calls: Call) -> None:
    """Compile the kernels of these launches in a thread each: on a slow host one may take 4 s.

    Raise what a compilation raises, and leave nothing of it behind. Triton's own AsyncCompileMode would: it stays set
    where a compilation fails, and keeps the failed one in the kernel's cache.
    """
    if not all(launch.is_new for launch, _ in calls):
        return
    triton.runtime.driver.active.get_current_device()  # else each thread would make a driver of its own
    with ThreadPoolExecutor(len(calls)) as threads:
        for compilation in [threads.submit(launch.compile, *tensors) for launch, tensors in calls]:
            compilation.result()


class PlanCache(dict[Hashable, T]):
    """Plans by everything that each was made for; emptied when it has MAX_PLANS, of shapes that come once."""

    def keep(self, key: Hashable, plan: T) -> T:
        """Store and return the plan."""
        if len(self) >= MAX_PLANS:
            self.clear()
        self[key] = plan
        return plan


def kinds_of(q: Tensor, k: Tensor, v: Tensor) -> Hashable:
    """Return device, dtype and shape of each tensor, and whether its memory holds the negatives of its values."""
    kinds = q.device, q.dtype, q.shape, k.device, k.dtype, k.shape, v.device, v.dtype, v.shape
    return kinds, q.is_neg(), k.is_neg(), v.is_neg()


def layout_of(*tensors: Tensor) -> Hashable:
    """Return what Triton may specialize on in tensors of known kinds, and in others that torch allocates like them.

    It is True, in half the time, of tensors that are all contiguous and aligned. Address 0, no memory, counts as 0.5.
    """
    for x in tensors:
        if (x.data_ptr() or 0.5) % 16 or not x.is_contiguous():
            return tuple([(x.stride(), (x.data_ptr() or 0.5) % 16) for x in tensors])
    return True


def like(x: Tensor) -> Tensor:
    """Allocate a tensor with x's strides, or contiguous where these would scatter head vectors."""
    empty = torch.empty_like(x)
    return empty if empty.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def allocates(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return `like` for tensors laid out as x: torch's own function where that suffices."""
    return torch.empty_like if torch.empty_like(x).stride(-1) == 1 else like


def allocates_float32(shape: Sequence[int], device: torch.device) -> Callable[[], Tensor]:
    """Return a function that allocates such tensors; `torch.empty_like` takes half the time of `torch.empty`."""
    return partial(torch.empty_like, _one_float32(device).expand(shape))


@cache
def _one_float32(device: torch.device) -> Tensor:
    """Return an element that nothing reads, whose views tell `torch.empty_like` dtype, device and shape."""
    return torch.empty(1, dtype=torch.float32, device=device)


def new_lse(q: Tensor) -> Tensor:
    """Allocate the log-sum-exp of q's rows."""
    return torch.empty(*q.shape[:-1], dtype=torch.float32, device=q.device)


def strides(*tensors: Tensor) -> tuple[int, ...]:
    """Return the strides of batch, heads and seq_len of each tensor; that of d is 1. No size of 1 is stepped over."""
    return tuple(
        stride if size > 1 else 0 for x in tensors for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)
    )


def stride_unit(*tensors: Tensor) -> int:
    """Return what a kernel is to know of the strides of tensors of one dtype: a power of two that divides them all.

    It is at most 16 bytes, as much as a thread loads at once, and 1 where Triton sees for itself that 16 divides all.
    """
    given = strides(*tensors)
    return 1 if math.gcd(16, *given) == 16 else math.gcd(16 // tensors[0].element_size(), *given)


def num_tiles(x: Tensor, rows: int) -> int:
    """Return the number of tiles of so many rows in all heads."""
    batch, num_heads, seq_len, _ = x.shape
    return cdiv(seq_len, rows) * batch * num_heads


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)
