"""Triton's interpreter, made faster: half of its time is bookkeeping that comes to the same in every operation."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def speed_up_interpreter() -> None:
    """Patch Triton's functions once a launch, and build each shape, block type and NumPy type once a process.

    A release that lacks what is replaced here interprets slower, with the same results.
    """
    from triton import language
    from triton.runtime import interpreter

    if hasattr(interpreter, "_patch_lang"):
        _patch_language_once_a_launch(interpreter, language)
    if hasattr(interpreter, "InterpreterOptions") and hasattr(interpreter.InterpreterOptions, "sanitize_overflow"):
        _leave_overflow(interpreter)
    if hasattr(interpreter, "_get_np_dtype"):
        _keep_types(interpreter, language.core)


def _patch_language_once_a_launch(interpreter: Any, language: Any) -> None:
    """Triton does it anew at each call of a function inside a kernel, where nothing is left to replace."""
    patch_language = interpreter._patch_lang

    def patch_what_is_left(fn: Callable[..., Any]) -> Any:
        seen = [module for module in fn.__globals__.values() if module is language or module is language.core]
        return patch_language(fn) if any(language.core.is_builtin(module.load) for module in seen) else None

    interpreter._patch_lang = patch_what_is_left


def _leave_overflow(interpreter: Any) -> None:
    """Triton computes in each sum of integers whether it overflowed, and looks at the answer in debug mode alone."""
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=options.debug)


def _keep_types(interpreter: Any, core: Any) -> None:
    """Nothing changes a type, a shape or a constant once it is made, so tensors share them."""
    numpy_type = interpreter._get_np_dtype
    of_scalar = functools.cache(numpy_type)
    blocks: dict[tuple[Any, ...], Any] = {}

    @functools.cache
    def shape_and_size(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))

    def init(tensor: Any, handle: Any, type: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
        tensor.shape, tensor.numel = shape_and_size(tuple(type.shape) if type.is_block() else ())

    def block(element: Any, shape: Any) -> Any:
        if element.is_ptr():  # whose name does not tell all
            return core.block_type(element, shape)
        key = element.name, *map(int, shape)
        if key not in blocks:
            blocks[key] = core.block_type(element, shape)
        return blocks[key]

    interpreter._get_np_dtype = lambda type: numpy_type(type) if type.scalar.is_ptr() else of_scalar(type.scalar)
    interpreter.InterpreterBuilder.get_block_ty = lambda builder, element, shape: block(element, shape)
    core.block_type.with_element_ty = lambda self, element: block(element, self.shape)
    core.tensor.__init__ = init
