"""The cells of the attention study, and the arms of each cell."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar

from perf.harness.case import Cache, Case, ClockName
from perf.studies.attention.groups import GROUPS, CellGroup
from perf.workloads.attention_problem import BYTES

MASKS = {True: "causal", False: "full"}
CLOCKS: dict[ClockName, Cache] = {"cuda_events": "cold", "cuda_graph": "warm", "gpu_wall": "warm"}
"""Clocks of a GPU; L2 is flushed before a sample only if the clock allows it and the host does not count."""

HALVES_ONLY = ("sdpa_flash", "sdpa_cudnn")
EAGER = {"reference": 4, "reference_compiled": 2, "sdpa_math": 2}
"""Score matrices alive at once in a backward, at least: the probabilities, their gradient; eager also that of the
scores and the scaled one. A forward takes half as many."""

SCORES_BYTES = 4 * 2**30  # with so many eager takes 36 ms forward and backward on an H200, cuDNN 4


@dataclass(frozen=True)
class Cell:
    """One problem, mode and clock, which all arms of a comparison share."""

    group: str
    batch: int
    num_heads: int
    seq_len: int
    d: int
    dtype: str
    is_causal: bool
    mode: str
    clock: ClockName
    cache: Cache
    kv_heads: int = field(default=0, kw_only=True)
    """Heads of k and v; as many as of q unless given."""

    def __post_init__(self):
        object.__setattr__(self, "kv_heads", self.kv_heads or self.num_heads)

    @property
    def mask(self) -> str:
        """The mask, causal or full."""
        return MASKS[self.is_causal]

    def case(self, impl: str, device: Literal["cuda", "cpu"]) -> Case:
        """Return the harness's case of one implementation."""
        shape: dict[str, Any] = {"seq_len": self.seq_len, "d": self.d, "dtype": self.dtype, "impl": impl}
        workload = GROUPS[self.group].workload
        if workload == "attention_leaderboard":
            params = shape | {"num_heads": self.num_heads}
        else:  # q is (batch, heads, seq_len, d), a layout that every implementation takes as it is
            whole = {"tokens": self.batch * self.seq_len, "d_model": self.num_heads * self.d}
            params = shape | whole | {"is_causal": self.is_causal, "mode": self.mode}
            params |= {"kv_heads": self.kv_heads} if self.kv_heads != self.num_heads else {}
        return Case("study", workload, params, device, self.clock, self.cache)

    def too_slow(self, first_s: Mapping[str, float]) -> dict[str, str]:
        """Return the arms that their first sample rules out, with the reason; none in this study."""
        return {}

    def axes(self) -> dict[str, Any]:
        """Return the columns that name the cell in a row."""
        return asdict(self)


C = TypeVar("C", bound=Cell)
AXES = tuple(field.name for field in fields(Cell))


def cells_of(groups: Mapping[str, CellGroup], clock: ClockName | None = None) -> Iterator[Cell]:
    """Yield the cells of each group; modes of one problem are neighbours, since they share its oracle."""
    for name, group in groups.items():
        by = clock or group.clock
        for problem, mode in itertools.product(group.problems(), group.modes):
            yield Cell(group=name, mode=mode, clock=by, cache=CLOCKS.get(by, "warm"), **problem._asdict())


def narrowed(cells: Sequence[C], **wanted: Sequence[Any]) -> list[C]:
    """Return the cells with a wanted value of each axis; no value means all.

    Raises `ValueError` for a value that no cell has, or none that is left, and if none is left.
    """
    kept = list(cells)
    for axis, values in wanted.items():
        allowed = sorted({getattr(cell, axis) for cell in cells})
        for value in values:
            if value not in allowed:
                name = axis.replace("_", "-")
                raise ValueError(f"--{name} {value} was given; allowed here: {', '.join(map(str, allowed))}")
        kept = [cell for cell in kept if not values or getattr(cell, axis) in values]
    if not kept:
        raise ValueError("no cell is left: no cell has all of the given values")
    for axis, values in wanted.items():
        for value in values:
            if all(getattr(cell, axis) != value for cell in kept):
                raise ValueError(f"no cell is left with --{axis.replace('_', '-')} {value} and the other given values")
    return kept


def peers_of(cell: Cell, device: str) -> tuple[str, ...]:
    """Return the group's peers that take the cell's dtype; eager ones only up to `SCORES_BYTES` of scores.

    On the wall clock also `sdpa`: torch's own choice, without the context manager that selects a backend.
    """
    if device == "cpu":
        return ("sdpa_flash", "reference")
    refused = HALVES_ONLY if cell.dtype == "float32" else ()
    peers = (*(("sdpa",) if cell.clock == "gpu_wall" else ()), *GROUPS[cell.group].peers)
    return tuple(impl for impl in peers if impl not in refused and scores_bytes(cell, impl) <= SCORES_BYTES)


def scores_bytes(cell: Cell, impl: str) -> int:
    """Return the bytes of the scores of all heads in one matrix of `impl`; 0 if it never stores them."""
    if impl not in EAGER:
        return 0
    dtype = "float32" if impl == "sdpa_math" else cell.dtype  # which computes half precision in float32
    return cell.batch * cell.num_heads * cell.seq_len**2 * BYTES[dtype]


def min_bytes(cell: Cell, impl: str) -> int:
    """Return a lower bound on the bytes that `impl` needs; 0 if it never stores all scores."""
    matrices = EAGER.get(impl, 0)
    return scores_bytes(cell, impl) * (matrices // 2 if cell.mode == "forward" else matrices)
