"""A case in a reader's words: its quantity, implementation, outcome and axes."""

from collections.abc import Iterable
from typing import Any, Literal

from perf.harness.status import Status

Quantity = Literal["time", "memory"]

FASTEST = "fastest"
"""The pseudo-peer: in each case the best of the others."""

LABELS = {  # what everybody knows first, then step by step to our kernels, then PyTorch's
    "reference": "eager PyTorch",
    "reference_compiled": "compiled eager",
    "pytorch": "tiled PyTorch",
    "pytorch_compiled_backward": "tiled PyTorch, compiled backward",
    "triton_forward_compiled_backward": "Triton forward, compiled backward",
    "triton": "Triton",
    "triton_tf32": "Triton, TF32 allowed",
    "triton_compiled": "compiled Triton",
    "sdpa": "SDPA",
    "sdpa_flash": "SDPA flash",
    "sdpa_cudnn": "SDPA cuDNN",
    "sdpa_efficient": "SDPA efficient",
    "sdpa_math": "SDPA math",
    "flex": "FlexAttention",
    FASTEST: "the fastest peer",
}
STATUS: dict[Status, tuple[str, str]] = {  # in words, and short enough for a cell
    "ok": ("measured", "ok"),
    "unavailable": ("not available", "n/a"),
    "out_of_memory": ("out of memory", "OOM"),
    "wrong": ("wrong result", "wrong"),
    "too_fast": ("faster than the hardware allows", "too fast"),
    "throttled": ("the device throttled", "throttled"),
    "error": ("error", "error"),
    "crashed": ("crashed", "crash"),
    "hung": ("hung", "hung"),
    "does_not_compile": ("does not compile", "compiler"),
    "out_of_the_race": ("too slow to go on with", "too slow"),
    "not_measured": ("not measured", "-"),
}
_VALUES = {
    ("is_causal", True): "causal",
    ("is_causal", False): "no mask",
    ("mode", "forward_backward"): "forward + backward",
    ("mode", "before_backward"): "before the backward",
}
_SELF_EXPLAINING = ("mode", "dtype", "is_causal")


def label(impl: str) -> str:
    """An implementation as a reader knows it."""
    return LABELS.get(impl, impl)


def reading_order(impl: str) -> tuple[int, str]:
    """Sorts implementations as `LABELS` has them; what it does not know comes last."""
    known = list(LABELS)
    return (known.index(impl) if impl in known else len(known), impl)


def status(name: Status) -> tuple[str, str]:
    """A status in words, and short."""
    return STATUS[name]


def value_text(axis: str, value: Any) -> str:
    """A value under its axis's name, as in a table."""
    return _VALUES.get((axis, value), str(value))


def words(axis: str, value: Any) -> str:
    """A value by itself, as in a sentence: "causal", "d 64"."""
    return value_text(axis, value) if axis in _SELF_EXPLAINING else f"{axis} {value}"


def varying(configs: Iterable[dict[str, Any]]) -> list[str]:
    """Axes with more than one value: the others need to be said only once."""
    seen: dict[str, set[Any]] = {}
    for config in configs:
        for axis, value in config.items():
            seen.setdefault(axis, set()).add(value)
    return [axis for axis, values in seen.items() if len(values) > 1]
