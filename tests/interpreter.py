"""Triton's interpreter, told to replace the functions of its language once a launch."""

from collections.abc import Callable
from typing import Any


def patch_language_once_a_launch() -> None:
    """Triton does it anew at each call of a function inside a kernel, where nothing is left to replace."""
    from triton import language
    from triton.runtime import interpreter

    patch_language = getattr(interpreter, "_patch_lang", None)
    if patch_language is None:
        return  # another release: slower, and as right

    def patch_what_is_left(fn: Callable[..., Any]) -> Any:
        seen = [module for module in fn.__globals__.values() if module is language or module is language.core]
        return patch_language(fn) if any(language.core.is_builtin(module.load) for module in seen) else None

    interpreter._patch_lang = patch_what_is_left
