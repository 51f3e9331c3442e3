"""What a workload is, and what it may say instead of working."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Floor:
    """The least work that any correct implementation of a case has to do."""

    flops: float = 0.0
    matmul_dtype: str = "float32"
    """Which measured matmul rate bounds `flops`: "bfloat16", "float16" or "float32" (tf32 on a GPU that has it)."""

    bytes_read: float = 0.0
    bytes_written: float = 0.0


def no_floor(reason: str) -> Floor:
    """For work of which no least is known, or which is nothing: a deliberate exception, with its reason."""
    assert reason
    return Floor()


def no_result(reason: str) -> Callable[[], float]:
    """The check of work that computes nothing: a deliberate exception, with its reason."""
    assert reason
    return lambda: 0.0


@dataclass(frozen=True)
class Part:
    """A phase of a workload, timed by itself."""

    run: Callable[[], Any]
    floor: Floor


@dataclass(frozen=True)
class Workload:
    """What `build` of a module of this folder returns."""

    run: Callable[[], Any]
    """The timed region, and nothing else."""

    check: Callable[[], float]
    """Compare with an independent oracle; returns the error found, raises `WrongResult` above the tolerance."""

    floor: Floor
    prepare: Callable[[], None] = lambda: None
    """Before every sample, outside the timed region: drop gradients and the like."""

    parts: Mapping[str, "Part"] = field(default_factory=dict)
    """The calls that make up `run`, in order, where each can be timed by itself."""

    without: Callable[[], Any] | None = None
    """The same without what is asked about: if given, a sample is the time of `run` less that of this, in turn."""

    settles: bool = False
    """Whether the first run makes what all others hold, an optimizer's state: its memory is that of the second."""

    facts: Callable[[], dict[str, float]] = dict
    """Numbers beside the time, by name: bytes that a step communicates, say. Called after a run."""

    results: Callable[[], dict[str, Any]] = dict
    """Tensors by name that depend on the code alone, for two commits to be held against each other."""

    rounding: float = 0.0
    """Norm of the difference of two right results, over the norm of one, that rounding explains."""


class Unavailable(Exception):
    """This commit or this machine cannot do the case; the message is the reason, in one line."""


class DoesNotFit(Exception):
    """What the case needs is known to be more than this machine's memory; the message says how much, in one line."""


class WrongResult(Exception):
    """The output differs from the oracle by more than the tolerance; a wrong case gets no time."""
