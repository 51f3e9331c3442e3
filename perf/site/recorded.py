"""Read a commit's records for the pages. A case whose record has another form is left out, with the reason."""

import functools
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NotRequired, get_origin

from perf.forms import Finite, matches
from perf.harness import records
from perf.harness.records import KEPT_FROM_VISIT, Session, counted_samples
from perf.harness.status import Status

KINDS = ("session", "process", "visit")
"""Kinds of lines that the pages show."""


@dataclass(frozen=True)
class Recorded:
    """A commit's records."""

    lines: list[dict[str, Any]]
    """Sessions, processes and visits of the known form, in order."""

    trouble: str = ""
    """Says what is left out, and why; "" if nothing is."""


@functools.lru_cache(maxsize=64)  # pages need the same few commits
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
    for name, kind in form.items():
        if name in line and not matches(line[name], kind):
            return f"{name} is {line[name]!r:.60}"
        if name not in line and get_origin(kind) is not NotRequired:
            return f"{name} is missing"
    if line["kind"] == "session":
        return next((f"{name!s:.60} is not known" for name in line if name not in form and name != "kind"), "")
    is_counted = line["kind"] == "visit" and line["status"] == "ok" and line["visit"] >= KEPT_FROM_VISIT
    return "samples_ns has no sample" if is_counted and not (line.get("samples_ns") and counted_samples(line)) else ""


Scalar = str | bool | int | float | None


def _but(kind: Any, **named: Any) -> Any:
    """Return the type of an object with values of this kind, but for these fields, if they are there."""

    def holds(value: Any) -> bool:
        return isinstance(value, dict) and all(matches(one, named.get(name, kind)) for name, one in value.items())

    return Annotated[Any, holds]


def _has_products(ceilings: dict[str, Any]) -> bool:
    return ceilings == {} or "matmul_flops_per_s" in ceilings


def _has_name(kernel: dict[str, Any]) -> bool:
    return isinstance(kernel.get("name"), str)


_TEXTS = {one.name: str if one.default is MISSING else NotRequired[str] for one in fields(Session) if one.type is str}
_DEVICE = dict.fromkeys(("memory_bytes", "sm_count", "power_limit_w", "threads", "l2_bytes"), Finite | None)
_KERNEL: Any = Annotated[_but(Scalar, shared_bytes=Finite), _has_name]
_FORMS: dict[str, dict[str, Any]] = {
    "session": {**_TEXTS, "device": _but(Scalar, name=str, **_DEVICE), "software": dict[str, str]},
    "process": {
        "session": str,
        "ceilings": Annotated[_but(Finite, matmul_flops_per_s=dict[str, Finite]), _has_products],
    },
    "visit": {
        "session": str,
        "benchmark": str,
        "params": dict[str, Scalar],
        "visit": Finite,
        "status": Status,
        "reason": str,
        "cache": str,
        "clock": NotRequired[str],
        "samples_ns": NotRequired[list[Finite]],
        "throttled": NotRequired[list[Finite]],
        "peak_bytes": NotRequired[Finite | None],
        "facts": NotRequired[dict[str, Finite]],
        "floor": NotRequired[_but(Finite, matmul_dtype=str)],
        "kernels": NotRequired[list[tuple[str, Finite, Finite]]],
        "triton_kernels": NotRequired[list[_KERNEL]],
        "largest_allocations": NotRequired[list[tuple[Finite, str]]],
    },
}
"""The fields of each kind of line."""
