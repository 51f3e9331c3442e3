"""Whether a JSON value has the form that a Python type describes, where files are read or written."""

import functools
import operator
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

Predicate = Callable[[Any], bool]


def matches(value: Any, kind: Any) -> bool:
    """Return whether a JSON value is of this type. An int is a float, a bool is neither, and a tuple is a list.

    Predicates of an `Annotated` type must hold, too. A TypedDict raises TypeError: forms are flat.
    """
    return _predicate(kind)(value)


@functools.cache  # for each number of a long list
def _predicate(kind: Any) -> Predicate:
    if kind is Any:
        return lambda _: True
    if isinstance(kind, type):
        return _instance_of(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return lambda value: value in parts
    if origin is dict:
        of_value = _predicate(parts[1])
        return lambda value: isinstance(value, dict) and all(map(of_value, value.values()))
    first = _predicate(parts[0])
    if origin in (Required, NotRequired):
        return first
    if origin is Annotated:
        return lambda value: first(value) and all(holds(value) for holds in parts[1:])
    if origin is list:
        return lambda value: isinstance(value, list) and all(map(first, value))
    each = [_predicate(part) for part in parts]
    if origin in (Union, types.UnionType):
        return lambda value: any(fits(value) for fits in each)
    assert origin is tuple, kind
    return lambda value: isinstance(value, list) and len(value) == len(each) and all(map(operator.call, each, value))


def _instance_of(kind: type) -> Predicate:
    if kind is bool:
        return lambda value: isinstance(value, bool)
    allowed = (int, float) if kind is float else kind
    return lambda value: isinstance(value, allowed) and not isinstance(value, bool)


def written(kind: Any) -> str:
    """Return a type as it is written."""
    return getattr(kind, "__name__", "") if not get_args(kind) else str(kind).replace("typing.", "")
