"""A case is one cell of one benchmark's grid; a workload is what the case builds and runs."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Cache = Literal["cold", "warm"]


@dataclass(frozen=True)
class Case:
    """One cell: what asv calls a benchmark with one combination of parameters."""

    benchmark: str
    """`module.Class`, as asv names it: "attention.FlashAttention"."""

    workload: str
    """Module of `perf.workloads` whose `build(params, device)` makes the work."""

    params: dict[str, Any]
    """Axis name -> value, in the order of the axes."""

    device: Literal["cuda", "cpu"]
    cache: Cache
    """cold: L2 is flushed before every sample, outside the timed region. warm: it is not."""

    @property
    def key(self) -> str:
        """`module.Class(8192, 64, 'bfloat16')`: asv's own way to write a parameterized benchmark."""
        return f"{self.benchmark}({', '.join(map(repr, self.params.values()))})"

    def to_json(self) -> dict[str, Any]:
        """The case as it travels to a worker and into the records."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Floor:
    """The least work that any correct implementation of a case has to do."""

    flops: float = 0.0
    matmul_dtype: str = "float32"
    """Which measured matmul rate bounds `flops`: "bfloat16", "float16" or "float32" (tf32 on a GPU that has it)."""

    bytes_read: float = 0.0
    bytes_written: float = 0.0


@dataclass(frozen=True)
class Workload:
    """What `perf.workloads.*.build` returns."""

    run: Callable[[], Any]
    """The timed region, and nothing else."""

    check: Callable[[], float]
    """Compare with an independent oracle; returns the error found, raises `WrongResult` above the tolerance."""

    floor: Floor
    prepare: Callable[[], None] = lambda: None
    """Before every sample, outside the timed region: drop gradients and the like."""


class Unavailable(Exception):
    """This commit or this machine cannot do the case; the message is the reason, in one line."""


class WrongResult(Exception):
    """The output differs from the oracle by more than the tolerance; a wrong case gets no time."""
