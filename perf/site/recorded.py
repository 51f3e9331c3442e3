"""Read a commit's records for the pages. A case whose record has another form is left out, with the reason."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from perf.harness import records
from perf.harness.records import KEPT_FROM_VISIT, Session, counted_samples
from perf.harness.status import STATUSES

KINDS = ("session", "process", "visit")
"""Kinds of lines that the pages show."""


@dataclass(frozen=True)
class Recorded:
    """A commit's records."""

    lines: list[dict[str, Any]]
    """Sessions, processes and visits of the known form, in order."""

    trouble: str = ""
    """Says what is left out, and why; "" if nothing is."""


def read(directory: Path, machine: str, commit: str, kinds: tuple[str, ...] = KINDS) -> Recorded:
    """Read a commit's records of these kinds; raises nothing."""
    try:
        lines = records.read_lines(directory, machine, commit, kinds)
    except SystemExit as error:
        return Recorded([], f"cannot be read: {str(error).partition(' cannot be read: ')[2].partition(';')[0]}")
    return sound(lines)


def sound(lines: Iterable[dict[str, Any]]) -> Recorded:
    """Leave out faulty lines, whatever belongs to a faulty session, and each case with a faulty visit."""
    lines = list(lines)
    sessions = {line.get("id") for line in lines if line["kind"] == "session" and not _fault(line)}
    kept, faults, cases = list[dict[str, Any]](), list[str](), set[str]()
    for line in lines:
        why = _fault(line)
        if not why and line["kind"] != "session" and line["session"] not in sessions:
            why = "its session is unknown"
        if why:
            faults.append(f"{line['kind']}{_named(line)}: {why}")
            cases.add(_case(line))
        else:
            kept.append(line)
    if not faults:
        return Recorded(kept)
    kept = [line for line in kept if _case(line) not in cases]
    return Recorded(
        kept, f"is read without {len(lines) - len(kept)} of {len(lines)} lines, which are of another form: {faults[0]}"
    )


def _case(line: dict[str, Any]) -> str:
    return repr([line.get(name) for name in ("kind", "id", "session", "benchmark", "params")])


def _named(line: dict[str, Any]) -> str:
    return f" of {line.get('benchmark')!s:.60}" if line["kind"] == "visit" else ""


def _fault(line: dict[str, Any]) -> str:
    """Describe the first fault of a line; "" if it has none."""
    form = _FORMS[line["kind"]]
    wrong = next((name for name, fits in form.items() if not fits(line.get(name, _Absent))), None)
    if wrong is not None:
        return f"{wrong} is {line[wrong]!r:.60}" if wrong in line else f"{wrong} is missing"
    if line["kind"] == "session":
        return next((f"{name!s:.60} is not known" for name in line if name not in form and name != "kind"), "")
    is_counted = line["kind"] == "visit" and line["status"] == "ok" and line["visit"] >= KEPT_FROM_VISIT
    return "samples_ns has no sample" if is_counted and not (line.get("samples_ns") and counted_samples(line)) else ""


class _Absent:
    """Stands for a field that a line lacks."""


Fits = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _optional(fits: Fits) -> Fits:
    return lambda value: value is _Absent or fits(value)


def _or_none(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _each(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _row(*fits: Fits) -> Fits:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(fits)
        and all(one(each) for one, each in zip(fits, value, strict=True))
    )


def _of(fits: Fits, **named: Fits) -> Fits:
    """Require an object with values that fit, and each of these fields, if it is there, of its own form."""
    return lambda value: isinstance(value, dict) and all(named.get(name, fits)(one) for name, one in value.items())


def _ceilings(value: Any) -> bool:
    return value == {} or (_of(_number, matmul_flops_per_s=_of(_number))(value) and "matmul_flops_per_s" in value)


def _kernel(value: Any) -> bool:
    return _of(_scalar, shared_bytes=_number)(value) and _text(value.get("name"))


_SESSION = {one.name: _text for one in fields(Session) if one.name not in ("device", "software", "ceilings")}
_DEVICE = dict.fromkeys(("memory_bytes", "sm_count", "power_limit_w", "threads", "l2_bytes"), _or_none(_number))
_FORMS: Mapping[str, Mapping[str, Fits]] = {
    "session": {**_SESSION, "device": _of(_scalar, name=_text, **_DEVICE), "software": _of(_text)},
    "process": {"session": _text, "ceilings": _ceilings},
    "visit": {
        "session": _text,
        "benchmark": _text,
        "params": _of(_scalar),
        "visit": _number,
        "status": lambda value: value in STATUSES,
        "reason": _text,
        "cache": _text,
        "clock": _optional(_text),
        "samples_ns": _optional(_each(_number)),
        "throttled": _optional(_each(_number)),
        "peak_bytes": _optional(_or_none(_number)),
        "facts": _optional(_of(_number)),
        "floor": _optional(_of(_number, matmul_dtype=_text)),
        "kernels": _optional(_each(_row(_text, _number, _number))),
        "triton_kernels": _optional(_each(_kernel)),
        "largest_allocations": _optional(_each(_row(_number, _text))),
    },
}
