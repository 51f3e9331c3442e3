"""Launching a Triton kernel again without all that Triton looks at in every launch."""

import contextlib
from collections.abc import Hashable
from typing import Any

import torch
import triton
from torch import Tensor

_MOST_COMPILED = 4096
_compiled: dict[tuple[Hashable, ...], Any] = {}


def launch(
    kernel: Any, key: Hashable, num_programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]
) -> None:
    """kernel[(num_programs,)](*arguments, **constants); fast from the second launch of a `key` on.

    Triton compiles for what it sees of its arguments (dtypes, alignment of pointers, whether an integer is 1, divisible
    by 16, beyond 32 bits), and looks at each of them in every launch: 130 us for 25 of them, where a kernel of 1024
    keys takes 15 (measured beside an H200, triton 3.6). So `key`, with the kernel and the constants, has to determine
    all of that: see `key_of_tensors`.
    """
    if torch.compiler.is_compiling() or not isinstance(kernel, triton.runtime.JITFunction):
        kernel[(num_programs,)](*arguments, **constants)
        return
    entry = (id(kernel), key, *constants.values())
    compiled = _compiled.get(entry)
    if compiled is None:
        if len(_compiled) >= _MOST_COMPILED:  # of shapes that come once
            _compiled.clear()
        compiled = kernel[(num_programs,)](*arguments, **constants)
        _compiled[entry] = compiled
        return
    rest = (constants[name] for name in kernel.arg_names[len(arguments) :])
    compiled[(num_programs, 1, 1)](*arguments, *rest)


def cdiv(a: int, b: int) -> int:
    """a / b rounded up, in a twentieth of the time of Triton's, which is for kernels too."""
    return -(-a // b)


def key_of_tensors(*tensors: Tensor) -> Hashable:
    """What Triton may see of these, and of others that torch allocates like them."""
    if torch.compiler.is_compiling():
        return None  # Triton is not asked
    seen: list[Hashable] = [tensors[0].device]
    for x in tensors:
        seen += (x.dtype, x.shape, x.stride(), x.data_ptr() % 16)
    return tuple(seen)


def on_device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, whatever device its pointers are on."""
    if not x.is_cuda or (not torch.compiler.is_compiling() and x.device.index == torch.cuda.current_device()):
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)
