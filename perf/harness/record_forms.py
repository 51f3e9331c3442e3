"""The form of each kind of line in the records: a file may come from another version, or from anybody."""

from typing import Annotated, Any, NotRequired, get_origin

from perf.forms import Finite, predicate
from perf.harness.status import Status

Scalar = str | bool | int | float | None


def _but(kind: Any, **named: Any) -> Any:
    """Return the type of an object with values of this kind, but for these fields, if they are there."""

    usual, by_name = predicate(kind), {name: predicate(other) for name, other in named.items()}

    def holds(value: Any) -> bool:
        return isinstance(value, dict) and all(by_name.get(name, usual)(one) for name, one in value.items())

    return Annotated[Any, holds]


def _has_products(ceilings: dict[str, Any]) -> bool:
    return ceilings == {} or "matmul_flops_per_s" in ceilings


def _has_name(kernel: dict[str, Any]) -> bool:
    return isinstance(kernel.get("name"), str)


_TEXTS = dict.fromkeys(("id", "started_at", "day", "harness", "effort", "machine", "commit"), str)
_DEVICE = dict.fromkeys(("memory_bytes", "sm_count", "power_limit_w", "threads", "l2_bytes"), Finite | None)
_KERNEL: Any = Annotated[_but(Scalar, shared_bytes=Finite), _has_name]
FORMS: dict[str, dict[str, Any]] = {
    "session": {
        **_TEXTS,
        "suite": NotRequired[str],
        "device": _but(Scalar, name=str, **_DEVICE),
        "software": dict[str, str],
    },
    "process": {
        "session": str,
        "ceilings": Annotated[_but(Finite, matmul_flops_per_s=dict[str, Finite]), _has_products],
        "started_in_s": NotRequired[Finite],
    },
    "visit": {
        "session": str,
        "benchmark": str,
        "params": dict[str, Scalar],
        "visit": Finite,
        "timed": NotRequired[bool],
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
        "spent_ms": NotRequired[dict[str, Finite]],
    },
    "reach": {"session": str, "benchmark": str, "params": dict[str, Scalar], "needs": dict[str, str]},
    "run": {"session": str, "benchmark": str, "cases": Finite, "seconds": Finite, "ended_at": NotRequired[str]},
}
"""The fields of each kind of line; `records` tells what they mean."""

_FIELDS = {
    kind: [(name, predicate(form), get_origin(form) is not NotRequired) for name, form in fields.items()]
    for kind, fields in FORMS.items()
}
"""Name, form and whether a line needs it."""


def fault(line: dict[str, Any]) -> str:
    """Describe the first fault of a line of a kind in `FORMS`; "" if it has none."""
    for name, fits, is_needed in _FIELDS[line["kind"]]:
        if name in line:
            if not fits(line[name]):
                return f"{name} is {line[name]!r:.60}"
        elif is_needed:
            return f"{name} is missing"
    unknown = line.keys() - FORMS[line["kind"]].keys() - {"kind"} if line["kind"] == "session" else ()
    return f"{min(unknown)!s:.60} is not known" if unknown else ""
