"""Display names of quantities and axes."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

Quantity = Literal["time", "memory"]

_VALUES = {
    ("is_causal", True): "causal",
    ("is_causal", False): "no mask",
    ("mode", "forward_backward"): "forward + backward",
    ("mode", "before_backward"): "before the backward",
}


def value_text(axis: str, value: Any) -> str:
    """Format a value for a column headed by its axis."""
    return _VALUES.get((axis, value), str(value))


def words(axis: str, value: Any) -> str:
    """Format a value with its axis, where its words do not say it: "causal", "d 64"."""
    return value_text(axis, value) if isinstance(value, str) or (axis, value) in _VALUES else f"{axis} {value}"


def sentence(params: Mapping[str, Any]) -> str:
    """ "seq_len 128, d 64, bfloat16, causal"."""
    return ", ".join(words(axis, value) for axis, value in params.items())


def varying(configs: Iterable[dict[str, Any]]) -> list[str]:
    """Return axes with more than one value. Constant axes are shown once per section."""
    seen: dict[str, set[Any]] = {}
    for config in configs:
        for axis, value in config.items():
            seen.setdefault(axis, set()).add(value)
    return [axis for axis, values in seen.items() if len(values) > 1]
