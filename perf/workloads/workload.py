"""The interface of a workload: its calls, its check, its floor, and the exceptions that replace a result."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Floor:
    """The minimum work of any correct implementation of a case."""

    flops: float = 0.0
    matmul_dtype: str = "float32"
    """The dtype whose measured matmul rate bounds `flops`: "bfloat16", "float16" or "float32" (TF32 on a GPU)."""

    bytes_read: float = 0.0
    bytes_written: float = 0.0
    launches: int = 0
    """Launches that the host has to make: bounds the series of the host's time, whose samples end before the device."""


def require_allowed(params: Mapping[str, Any], **allowed: Iterable[str]) -> None:
    """Raise `ValueError` for a param that has none of its allowed values."""
    for name, values in allowed.items():
        if params[name] not in values:
            raise ValueError(f"{name}={params[name]!r} was given; allowed: {', '.join(values)}")


def no_floor(reason: str) -> Floor:
    """Return an empty floor, for work whose minimum is unknown or zero: a deliberate exception, with its reason."""
    assert reason
    return Floor()


def no_result(reason: str) -> Callable[[], float]:
    """Return an empty check, for work that computes nothing: a deliberate exception, with its reason."""
    assert reason
    return lambda: 0.0


@dataclass(frozen=True)
class Part:
    """A phase of a workload, timed by itself."""

    run: Callable[[], Any]
    floor: Floor


@dataclass(frozen=True)
class Workload:
    """The result of `build` in each module of this folder."""

    run: Callable[[], Any]
    """The timed region, and nothing else."""

    check: Callable[[], float]
    """Compare with an independent oracle; return the error, or raise `WrongResult` above the tolerance."""

    floor: Floor
    prepare: Callable[[], None] = lambda: None
    """Prepare a sample, outside the timed region: drop gradients, for example."""

    parts: Mapping[str, "Part"] = field(default_factory=dict)
    """The calls that make up `run`, in order, if each can be timed by itself."""

    without: Callable[[], Any] | None = None
    """The same work without the part in question: a sample is the mean difference of two runs and two of this."""

    settles: bool = False
    """Whether the first run creates state that later runs keep, such as an optimizer's: the second's memory counts."""

    facts: Callable[[], dict[str, float]] = dict
    """Numbers beside the time, by name, such as communicated bytes; called after a run."""

    outside_bytes: Callable[[], int] = int
    """GPU memory beyond what torch's allocator counts, after a run."""

    results: Callable[[], dict[str, Any]] = dict
    """Tensors by name that depend only on the code, for a comparison of two commits."""

    rounding: float = 0.0
    """Maximum relative difference of two correct results that rounding explains (norms)."""


class Unavailable(Exception):
    """This commit or this machine cannot run the case; the message is the reason, in one line."""


class DoesNotFit(Exception):
    """The case needs more than this machine's memory; the message names the size, in one line."""


class WrongResult(Exception):
    """The output differs from the oracle by more than the tolerance: we do not time incorrect code."""
