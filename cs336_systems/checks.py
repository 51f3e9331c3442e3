"""Checks of arguments, before anything is computed with them."""

from collections.abc import Collection
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:  # the closed forms, which check sizes, need no torch
    from torch import Tensor


def is_int(value: object) -> TypeGuard[int]:
    """Whether `value` is an int; a bool is none, although Python's are ints."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is an int or a float, and no bool."""
    return isinstance(value, float) or is_int(value)


def require_at_least(least: int, **values: object) -> None:
    """Raise `ValueError`, with one line that says what is allowed, unless every value is an int of at least `least`."""
    for name, value in values.items():
        if not is_int(value) or value < least:
            raise ValueError(f"{name}={value!r} was given; allowed: an int of at least {least}")


def require_one_of(allowed: Collection[str], **values: object) -> None:
    """Raise `ValueError`, with one line that says what is allowed, unless every value is one of these names."""
    for name, value in values.items():
        if value not in allowed:
            raise ValueError(f"{name}={value!r} was given; allowed: {', '.join(allowed)}")


def require_ordered(params: object) -> None:
    """Raise `TypeError` for a set of parameters, or a group with one: its order differs between processes."""
    if isinstance(params, dict):
        params = params.get("params")
    if isinstance(params, set | frozenset):
        raise TypeError(
            f"a {type(params).__name__} of parameters was given, whose order differs between processes; "
            "allowed: an ordered collection, such as a list"
        )


def require_dense(**tensors: "Tensor") -> None:
    """Raise `ValueError` for a sparse or nested tensor."""
    for name, tensor in tensors.items():
        layout = "nested" if tensor.is_nested else str(tensor.layout)
        if layout != "torch.strided":
            raise ValueError(f"{name} is {layout}; allowed: a dense tensor")
