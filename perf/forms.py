"""Whether a JSON value has the form that a Python type describes, where files are read or written."""

import dataclasses
import functools
import math
import operator
import re
import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints

Predicate = Callable[[Any], bool]
Parsed = TypeVar("Parsed")


def finite(value: float) -> bool:
    """Return whether a number, even an int of any length, is finite as a float."""
    return abs(value) <= sys.float_info.max


def positive(value: float) -> bool:
    """Return whether a number is above 0."""
    return value > 0


Finite = Annotated[float, finite]


def matches(value: Any, kind: Any) -> bool:
    """Return whether a JSON value is of this type. An int is a float, a bool is neither, and a tuple is a list.

    Predicates of an `Annotated` type must hold, too.
    """
    return predicate(kind)(value)


@functools.cache
def predicate(kind: Any) -> Predicate:
    """Return `matches` of one type: records have a million values of few types."""
    if kind is Any:
        return lambda _: True
    if isinstance(kind, type):
        return _instance_of(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return lambda value: value in parts
    if origin is dict:
        of_value = predicate(parts[1])
        return lambda value: isinstance(value, dict) and all(map(of_value, value.values()))
    first = predicate(parts[0])
    if origin is NotRequired:
        return first
    if origin is Annotated:
        return lambda value: first(value) and all(holds(value) for holds in parts[1:])
    if kind == list[Finite]:
        return lambda value: isinstance(value, list) and (_are_usual(value) or all(map(first, value)))
    if origin is list:
        return lambda value: isinstance(value, list) and all(map(first, value))
    each = [predicate(part) for part in parts]
    if origin in (Union, types.UnionType):
        return lambda value: any(fits(value) for fits in each)
    assert origin is tuple, kind
    return lambda value: isinstance(value, list) and len(value) == len(each) and all(map(operator.call, each, value))


def _are_usual(values: list[Any]) -> bool:
    """Return whether all are `Finite`, in C and so of no type derived from a number's, nor of ints above 2**63."""
    kinds = {*map(type, values)}
    return all(map(math.isfinite, values)) if kinds == {float} else kinds == {int} and max(map(abs, values)) < 2**63


def _instance_of(kind: type) -> Predicate:
    if kind is bool:
        return lambda value: isinstance(value, bool)
    allowed = (int, float) if kind is float else kind
    return lambda value: isinstance(value, allowed) and not isinstance(value, bool)


def parsed(kind: type[Parsed], value: Any, name: str = "the document") -> Parsed:
    """Build dataclasses from JSON objects, tuples from lists and finite floats from numbers, at any depth.

    `name` is the field's. A field's `metadata` may hold another `key`; keys without a field are ignored. Raises
    ValueError, which names the key at fault.
    """
    form: Any = Finite if kind is float else kind
    origin, parts = get_origin(form), get_args(form)
    built: Any
    if origin in (Union, types.UnionType):  # of a type and None
        return None if value is None else parsed(parts[0], value, name)  # type: ignore[return-value]
    if isinstance(form, type) and dataclasses.is_dataclass(form) and isinstance(value, dict):
        arguments = {}
        for field, hint in _fields(form):
            if (key := _key(field)) in value:
                arguments[field.name] = parsed(hint, value[key], key)
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise ValueError(f"{key} is missing")
        built = form(**arguments)
    elif origin is dict and isinstance(value, dict):
        built = {key: parsed(parts[1], one, name) for key, one in value.items()}
    elif (origin is list or parts[1:] == (...,)) and isinstance(value, list):
        built = origin(parsed(parts[0], one, name) for one in value)
    elif origin is tuple and isinstance(value, list) and len(value) == len(parts):
        built = tuple(parsed(part, one, name) for part, one in zip(parts, value, strict=True))
    elif origin not in (dict, list, tuple) and matches(value, form):
        built = float(value) if float in parts else value
    else:
        raise ValueError(f"{name} is {value!r:.40}; allowed: {written(form)}")
    return built


@functools.cache
def _fields(kind: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields of a dataclass with their types."""
    hints = get_type_hints(kind, include_extras=True)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _key(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("key", field.name))


def as_object(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields as `parsed` reads them. Pass it to `json.dumps` as `default`."""
    return {_key(field): getattr(value, field.name) for field in dataclasses.fields(value)}


def written(kind: Any) -> str:
    """Return a type as it is written, without the modules of its names."""
    if get_origin(kind) is Annotated:
        first, *predicates = get_args(kind)
        return " ".join([*(holds.__name__ for holds in predicates), written(first)])
    if get_origin(kind) is NotRequired:
        return written(*get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return " | ".join("None" if part is types.NoneType else written(part) for part in get_args(kind))
    return getattr(kind, "__name__", "") if not get_args(kind) else re.sub(r"(?<!['\w.])(\w+\.)+", "", str(kind))
