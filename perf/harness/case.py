"""A case: one cell of one benchmark's grid."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Cache = Literal["cold", "warm"]
ClockName = Literal["cuda_events", "cuda_graph", "device_busy", "gpu_wall", "first_call", "ranks", "wall"]
ArmName = Literal["base", "head"]
ARMS: tuple[ArmName, ArmName] = ("base", "head")
"""What a case is compared of: two commits, or two environments."""


@dataclass(frozen=True)
class Case:
    """What asv calls a benchmark with one combination of parameters."""

    benchmark: str
    """`module.Class`, as asv names it: "attention.FlashAttention"."""

    workload: str
    """Module of `perf.workloads` whose `build(params, device)` makes the work."""

    params: dict[str, Any]
    """Axis name -> value, in the order of the axes."""

    device: Literal["cuda", "cpu"]
    clock: ClockName
    """What a sample is; see `clock`, `cuda_clocks`, `first_call`, `ranks`. Nothing falls back from one to another."""

    cache: Cache
    """cold: L2 is flushed before every sample, outside the timed region. warm: it is not."""

    timed: bool = True
    """False: only its memory is of interest, so it is visited once and gets no samples."""

    @property
    def key(self) -> str:
        """The case's name; see `case_key`."""
        return case_key(self.benchmark, self.params.values())

    def to_json(self) -> dict[str, Any]:
        """The case as it travels to a worker."""
        return dataclasses.asdict(self)


def case_key(benchmark: str, values: Iterable[Any]) -> str:
    """`module.Class(8192, 64, 'bfloat16')`: asv's own way to write a parameterized benchmark."""
    return f"{benchmark}({', '.join(map(repr, values))})"
