"""Private parts of torch and triton on the way to a kernel, each with a plain fallback: same results, longer calls.

Triton is imported inside functions, so that the package imports on machines without it.
"""

import copy
import dataclasses
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

MAX_ENCODED = 1024
"""Encoded descriptors, of some 200 bytes, that a launch remembers."""


@functools.cache
def warn_once(missing: str, instead: str) -> None:
    """Warn of what this release of torch or triton lacks, and of the fallback, once for each `missing`."""
    warnings.warn(f"{missing} is gone or has changed: {instead}", RuntimeWarning, stacklevel=3)


def functorch_check() -> Callable[[], bool]:
    """Return a function that tells whether torch.func's transforms are active.

    If they are not, an autograd.Function may call the C++ `apply` without torch's inspection of each argument, which
    is 5 % of the host time of a short attention call. Fallback: the function always returns True.
    """
    try:
        check = torch._C._are_functorch_transforms_active
        torch.autograd.Function.__mro__[1].apply  # type: ignore[attr-defined]  # noqa: B018
        if check() not in (True, False):
            raise TypeError(check())
    except Exception:
        warn_once("torch._C._are_functorch_transforms_active", "each call of attention takes torch's own apply")
        return lambda: True
    return check


def dispatch_mode_check() -> Callable[[], int | bool]:
    """Return a function that counts active TorchDispatchModes: fake tensors, a selective checkpoint.

    It sees torch's operators, of which attention is one only if it is called as such. Fallback: always False.
    """
    try:
        num_modes = torch._C._len_torch_dispatch_stack
        num_modes() + 1
    except Exception:
        warn_once("torch._C._len_torch_dispatch_stack", "a selective checkpoint outside of graphs recomputes attention")
        return lambda: False
    return num_modes


def tracing_check() -> Callable[[], bool]:
    """Return a function that tells whether torch.jit.trace records. Fallback: the public one, three times as slow."""
    return getattr(torch._C, "_is_tracing", torch.jit.is_tracing)


class DirectLaunch(NamedTuple):
    """A way to launch a compiled kernel without Triton's inspection of its arguments."""

    compiled: Any
    """Triton's compiled kernel, for launches that hooks watch."""

    rest: tuple[Any, ...]
    """Arguments after the tensors."""

    run: Callable[..., None]
    """Called with three numbers of the grid, a stream, *fixed, and the kernel's arguments."""

    fixed: tuple[Any, ...]
    as_one_tuple: bool
    """Whether the kernel's arguments are given as one tuple."""

    gpu: Any
    """Triton's driver, whose `get_current_device()` and `get_current_stream(device)` take a tenth of torch's time."""

    device: int


def direct_launch(
    kernel: Any, compiled: Any, tensors: tuple[Any, ...], scalars: tuple[Any, ...], constants: dict[str, Any]
) -> DirectLaunch | None:
    """Return a way to relaunch `compiled`, or None: then each launch has to go through `kernel[grid]`.

    Triton inspects each argument in every launch, 130 us for 25 arguments, while a kernel of 1024 keys takes 15 us
    (H200, triton 3.6). Its launcher also looks for scratch memory, 3 us, before it calls C, with arguments in an order
    that differs between releases. So a copy of the launcher records once what it passes on.
    """
    try:
        import triton

        names = kernel.arg_names[len(tensors) + len(scalars) :]
        rest = (*scalars, *(constants[name] for name in names))
        given = (*tensors, *rest)
        gpu = triton.runtime.driver.active
        device = gpu.get_current_device()
        gpu.get_current_stream(device)
        if hasattr(compiled, "result"):  # compiled under a caller's AsyncCompileMode
            compiled = compiled.result()
        launcher = compiled.run
        fixed = compiled.function, compiled.packed_metadata, None, None, None  # no hooks
        if getattr(launcher, "global_scratch_size", True) or getattr(launcher, "profile_scratch_size", True):
            return DirectLaunch(compiled, rest, launcher, fixed, False, gpu, device)
        recording = copy.copy(launcher)
        passed_on: list[Any] = []
        recording.launch = lambda *arguments: passed_on.extend(arguments)
        recording(1, 2, 3, 4, *fixed, *given)
        as_one_tuple = isinstance(passed_on[-1], tuple)
        last = passed_on[-1] if as_one_tuple else tuple(passed_on[-len(given) :])
        if passed_on[:4] != [1, 2, 3, 4] or not _same(last, given):
            raise TypeError("the launcher passes on other arguments than it gets")
        between = tuple(passed_on[4 : -1 if as_one_tuple else -len(given)])
        return DirectLaunch(compiled, rest, _encoding_once(launcher.launch), between, as_one_tuple, gpu, device)
    except Exception:
        warn_once("the launcher of Triton's compiled kernels", "each launch inspects all arguments, some 0.1 ms")
        return None


def _encoding_once(launch: Any) -> Any:
    """Return Triton's launch of a kernel with a memory of the tensor descriptors that it has encoded.

    It encodes each of them in every launch, 3 us. But they differ in nothing but the address, which the allocator soon
    gives out again. Fallback: `launch` itself.
    """
    if "make_tensordesc_arg" not in getattr(getattr(launch, "__code__", None), "co_names", ()):
        return launch
    encode = launch.__globals__["make_tensordesc_arg"]
    known: dict[tuple[int, int], Any] = {}

    def encode_once(descriptor: Any, layout: Any) -> Any:
        if layout is None:  # what the launch is given then holds the tensor
            return encode(descriptor, layout)
        key = descriptor.base.data_ptr(), id(layout)  # the layout is the kernel's own, one for each descriptor
        encoded = known.get(key)
        if encoded is None:
            if len(known) >= MAX_ENCODED:
                known.clear()
            encoded = known[key] = encode(descriptor, layout)
        return encoded

    names = launch.__globals__ | {"make_tensordesc_arg": encode_once}
    return types.FunctionType(launch.__code__, names, launch.__name__, launch.__defaults__, launch.__closure__)


def load(compiled: Any) -> None:
    """Load a compiled kernel and build its launcher, a C function that takes gcc 0.4 s on a slow host.

    Fallback: the first launch does both.
    """
    getattr(compiled, "run", None)


def _same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def descriptors_like(checked: Any) -> Callable[[Any], Any]:
    """Return a function that turns a tensor into a descriptor like `checked`, a Gluon TensorDescriptor.

    It skips the checks of the constructor, 3 us for each of seven descriptors. Fallback: `dataclasses.replace`.
    """
    kind = type(checked)

    def unchecked(x: Any) -> Any:
        descriptor = object.__new__(kind)
        descriptor.__dict__.update(fields, base=x)
        return descriptor

    try:
        fields = vars(checked)
        if fields.keys() != {field.name for field in dataclasses.fields(checked)}:
            raise TypeError("a descriptor holds more than its fields")
    except Exception:
        warn_once("the fields of Gluon's TensorDescriptor", "each launch checks its descriptors, some 20 us")
        return lambda x: dataclasses.replace(checked, base=x)
    return unchecked


def gluon_async_add() -> Any:
    """Return `async_add(descriptor, coord, tile)` for Gluon kernels: global += shared, by the copy engine.

    Triton 3.8 and newer name it; 3.6 and 3.7 have only the operation. Fallback: none, so an error makes the import of
    the Gluon kernels fail, and `gpu.runs_gluon` then selects the Triton kernels.
    """
    from triton.experimental.gluon.language.nvidia.hopper import tma

    if hasattr(tma, "async_atomic_add"):
        return tma.async_atomic_add

    from triton._C.libtriton import ir
    from triton.experimental.gluon.language._core import builtin

    add = ir.DESCRIPTOR_REDUCE_KIND.ADD

    @builtin
    def async_add(tensor_desc: Any, coord: Any, src: Any, _semantic: Any = None) -> None:
        coord = _semantic._convert_to_ir_values(coord, require_i64=False)
        _semantic.builder.create_async_tma_reduce(add, tensor_desc.handle, coord, src.handle)

    return async_add


def gluon_reinterpret() -> Any:
    """Return `reinterpret(shared, dtype, shape, layout)` for Gluon kernels, a view of the same shared memory.

    It is a method of shared memory, public in triton 3.9 and with a leading underscore in earlier releases.
    """
    from triton.experimental.gluon.language._core import builtin

    @builtin
    def reinterpret(shared: Any, dtype: Any, shape: Any, layout: Any, _semantic: Any = None) -> Any:
        method = getattr(shared, "reinterpret", None) or shared._reinterpret
        return method(dtype, shape, layout, _semantic=_semantic)

    return reinterpret
