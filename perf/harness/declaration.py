"""The attributes that a benchmark class declares, with what each may be."""

import math
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, get_args, get_type_hints

from perf.harness.case import Cache, Case, ClockName
from perf.workloads.axes import AXES

_MISSING = object()


def problem_of_class(cls: type) -> str:
    """Return what is missing or not allowed in a class's attributes, in one line; "" if nothing is."""
    return "; ".join(_problems(cls))


def _problems(cls: type) -> Iterator[str]:
    names = getattr(cls, "param_names", ())
    for name, (allowed, holds) in _ATTRIBUTES.items():
        value = getattr(cls, name, _MISSING)
        if value is _MISSING and name in ("clock", "cache") and name in names:
            continue  # an axis of this name says it
        if value is _MISSING:
            yield f"{name} is missing; allowed: {allowed}"
        elif not holds(value):
            yield f"{name} is {value!r:.80}; allowed: {allowed}"
    params = getattr(cls, "params", ())
    if _is_grid(params) and _is_names(names) and len(params) != len(names):
        yield f"params has {len(params)} axes and param_names {len(names)} names; allowed: as many of both"
    known = AXES.get(getattr(cls, "workload", ""))
    if known and _is_names(names) and (unknown := [name for name in names if name not in known | {"clock", "cache"}]):
        yield f"param_names has {', '.join(map(repr, unknown))}; allowed for its workload: {', '.join(sorted(known))}"
    if "setup_cache" not in vars(cls):
        yield "setup_cache is missing; allowed: a method of the class's own that returns measure_class(self)"


def _one_of(values: tuple[str, ...]) -> tuple[str, Callable[[Any], bool]]:
    return " or ".join(map(repr, values)), lambda value: value in values


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_grid(value: Any) -> bool:
    """asv writes a single axis as a list of values, without a list around it; the harness does not read that.

    An axis without values has no case, and of two cases of the same values neither has a name.
    """
    return isinstance(value, (list, tuple)) and all(map(_is_axis, value))


def _is_axis(values: Any) -> bool:
    """Whether JSON and asv's text give each value back, and no two are the same to a dictionary, as 0 and False are."""
    return isinstance(values, (list, tuple)) and all(map(_is_scalar, values)) and 0 < len(values) == len(set(values))


def _is_scalar(value: Any) -> bool:
    return type(value) in (NoneType, bool, int, str) or (type(value) is float and math.isfinite(value))


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


_ATTRIBUTES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "version": ('a string, "1" at first', lambda value: isinstance(value, str)),
    "timeout": ("seconds without output, as _Timed and _Weighed have it", _is_number),
    "negligible": (
        "(share of the time, seconds), the larger of which is ignored",
        lambda value: isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_number, value)),
    ),
    "params": (
        "for each axis a list of finite numbers, strings, booleans and None, one at least and no two equal",
        _is_grid,
    ),
    "param_names": ("a name for each axis", _is_names),
    "workload": ("a module of perf/workloads whose axes are in its axes.py", lambda value: value in AXES),
    "device": _one_of(get_args(get_type_hints(Case)["device"])),
    "clock": _one_of(get_args(ClockName)),
    "cache": _one_of(get_args(Cache)),
}
"""Attribute -> what it may be, in words and as a predicate."""
