"""Whether a JSON value has the form that a Python type describes, where files are read or written."""

import functools
import types
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin


def matches(value: Any, kind: Any) -> bool:
    """Return whether a JSON value is of this type. An int is a float, a bool is neither, and a tuple is a list.

    Predicates of an `Annotated` type must hold, too. A TypedDict raises TypeError: forms are flat.
    """
    if kind is Any:
        return True
    if isinstance(kind, type):
        if isinstance(value, bool):
            return kind is bool
        return isinstance(value, (int, float) if kind is float else kind)
    origin, inner = _parts(kind)
    if origin in (Required, NotRequired):
        return matches(value, inner[0])
    if origin is Annotated:
        return matches(value, inner[0]) and all(holds(value) for holds in inner[1:])
    if origin in (Union, types.UnionType):
        return any(matches(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(matches(each, inner[0]) for each in value)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(inner) and all(map(matches, value, inner))
    assert origin is dict, kind
    return isinstance(value, dict) and all(matches(each, inner[1]) for each in value.values())


@functools.cache  # for each number of a long list
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


def written(kind: Any) -> str:
    """Return a type as it is written."""
    return getattr(kind, "__name__", "") if not get_args(kind) else str(kind).replace("typing.", "")
