"""A case: one cell of one benchmark's grid."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Cache = Literal["cold", "warm"]
ClockName = Literal["cuda_events", "cuda_graph", "device_busy", "gpu_wall", "first_call", "host", "ranks", "wall"]
ArmName = Literal["base", "head"]
ARMS: tuple[ArmName, ArmName] = ("base", "head")
"""The arms of a comparison: two commits, or two environments."""


@dataclass(frozen=True)
class Case:
    """One asv benchmark with one combination of parameters."""

    benchmark: str
    """asv's name of the class, `module.Class`: "attention.FlashAttention"."""

    workload: str
    """Module of `perf.workloads` whose `build(params, device)` returns the work."""

    params: dict[str, Any]
    """Axis name -> value, in the order of the axes."""

    device: Literal["cuda", "cpu"]
    clock: ClockName
    """The definition of a sample; see `clock`, `cuda_clocks`, `first_call`, `ranks`. There is no fallback."""

    cache: Cache
    """cold: L2 is flushed before every sample, outside the timed region. warm: it is not."""

    timed: bool = True
    """Whether samples are taken. A case of which only the memory matters is visited once, without samples."""

    @property
    def key(self) -> str:
        """Return the case's name; see `case_key`."""
        return case_key(self.benchmark, self.params.values())

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON for a worker."""
        return dataclasses.asdict(self)


def case_key(benchmark: str, values: Iterable[Any]) -> str:
    """Return asv's name of a parameterized benchmark: `module.Class(8192, 64, 'bfloat16')`."""
    return f"{benchmark}({', '.join(map(repr, values))})"
