"""The cells of the attention study, in groups that answer one question each, and the arms of each cell."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeVar

from perf.harness.case import Cache, Case, ClockName
from perf.workloads.attention_problem import BYTES

MODES = ("forward", "backward", "forward_backward")
MASKS = {True: "causal", False: "full"}
CLOCKS: dict[ClockName, Cache] = {"cuda_events": "cold", "cuda_graph": "warm", "gpu_wall": "warm"}
"""Clocks of a GPU; L2 is flushed before a sample only if the clock allows it and the host does not count."""

HALVES_ONLY = ("sdpa_flash", "sdpa_cudnn")
EAGER = {"reference": 4, "reference_compiled": 2}
"""Score matrices alive at once in a backward, at least: the probabilities, their gradient; eager also that of the
scores and the scaled one. A forward takes half as many."""

SCORES_BYTES = 4 * 2**30  # with so many eager takes 36 ms forward and backward on an H200, cuDNN 4


@dataclass(frozen=True)
class CellGroup:
    """Cells that answer one question: all combinations of these axes."""

    asks: str
    seq_lens: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    """Number of heads, d."""

    modes: tuple[str, ...] = ("forward_backward",)
    is_causal: tuple[bool, ...] = (True,)

    dtype: str = "bfloat16"
    tokens: int | None = None
    """Total of tokens, which sets the batch; None for one sequence."""

    workload: str = "attention"
    clock: ClockName = "cuda_events"
    ours: tuple[str, ...] = ("triton",)


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
        return Case("study", workload, params, device, self.clock, self.cache)

    def out_of_the_race(self, first_s: Mapping[str, float]) -> dict[str, str]:
        """Return the arms that their first sample rules out, with the reason; none in this study."""
        return {}

    def axes(self) -> dict[str, Any]:
        """Return the columns that name the cell in a row."""
        return asdict(self)


C = TypeVar("C", bound=Cell)
AXES = tuple(field.name for field in fields(Cell))

GROUPS = {
    "grid": CellGroup(
        "32768 tokens, 16 heads x 128 and 32 x 64, causal and full, bfloat16: the papers' grid",
        seq_lens=(1024, 2048, 4096, 8192, 16384),
        heads=((16, 128), (32, 64)),
        modes=MODES,
        is_causal=(True, False),
        tokens=32768,
    ),
    "leaderboard": CellGroup(
        "the timed call of the CS336 leaderboard: 16 heads, 16384 x 64, causal, sum and gradients included",
        seq_lens=(16384,),
        heads=((16, 64),),
        workload="attention_leaderboard",
    ),
    "long": CellGroup(
        "one head of 65536, causal, bfloat16, d 16 to 128: batch and heads alone fill no GPU",
        seq_lens=(65536,),
        heads=((1, 16), (1, 32), (1, 64), (1, 128)),
        modes=("forward", "backward"),
    ),
    "short": CellGroup(
        "one head of 128 to 1024, causal, bfloat16, by the wall clock: launches and Python count",
        seq_lens=(128, 256, 512, 1024),
        heads=((1, 16), (1, 32), (1, 64), (1, 128)),
        clock="gpu_wall",
    ),
    "float32": CellGroup(
        "16 heads of 4096, causal, d 64 and 128, float32; ours with TF32 allowed too",
        seq_lens=(4096,),
        heads=((16, 64), (16, 128)),
        dtype="float32",
        ours=("triton", "triton_tf32"),
    ),
}

_TINY: dict[str, dict[str, Any]] = {
    "grid": {"seq_lens": (64, 128), "heads": ((2, 16),), "tokens": 256},
    "leaderboard": {"seq_lens": (64,), "heads": ((2, 16),)},
    "long": {"seq_lens": (512,), "heads": ((1, 16),)},
    "short": {"seq_lens": (16, 32), "heads": ((1, 16),)},
    "float32": {"seq_lens": (64,), "heads": ((2, 16),)},
}


def groups_of(device: str, *, tiny: bool = False) -> dict[str, CellGroup]:
    """Return `GROUPS`; if tiny, and on a CPU, with cells that all together take seconds."""
    on_gpu = device == "cuda"
    if on_gpu and not tiny:
        return GROUPS
    here: dict[str, Any] = {} if on_gpu else {"dtype": "float32", "clock": "wall", "ours": ("pytorch",)}
    return {name: replace(group, **here, **_TINY[name]) for name, group in GROUPS.items()}


def cells_of(groups: Mapping[str, CellGroup], clock: ClockName | None = None) -> Iterator[Cell]:
    """Yield the cells of each group; modes of one problem are neighbours, since they share its oracle."""
    for name, group in groups.items():
        by = clock or group.clock
        axes = itertools.product(group.seq_lens, group.heads, group.is_causal, group.modes)
        for seq_len, (num_heads, d), is_causal, mode in axes:
            batch = (group.tokens or seq_len) // seq_len
            yield Cell(name, batch, num_heads, seq_len, d, group.dtype, is_causal, mode, by, CLOCKS.get(by, "warm"))


def narrowed(cells: Sequence[C], **wanted: Sequence[Any]) -> list[C]:
    """Return the cells with a wanted value of each axis; no value means all. Raises `ValueError` if none is left."""
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
    return kept


def peers_of(cell: Cell, device: str) -> tuple[str, ...]:
    """Return PyTorch's implementations that take the cell's dtype; eager ones only up to `SCORES_BYTES` of scores.

    On the wall clock also `sdpa`: torch's own choice, without the context manager that selects a backend.
    """
    if device == "cpu":
        return ("sdpa_flash", "reference")
    peers: Iterable[str] = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex")
    if cell.clock == "gpu_wall":
        peers = ("sdpa", *peers)
    if cell.dtype == "float32":
        peers = (impl for impl in peers if impl not in HALVES_ONLY)
    return (*peers, *(EAGER if scores_bytes(cell) <= SCORES_BYTES else ()))


def scores_bytes(cell: Cell) -> int:
    """Return the bytes of one matrix of scores, all heads."""
    return cell.batch * cell.num_heads * cell.seq_len**2 * BYTES[cell.dtype]


def min_bytes(cell: Cell, impl: str) -> int:
    """Return a lower bound on the bytes that `impl` needs; 0 if it never stores all scores."""
    matrices = EAGER.get(impl, 0)
    return scores_bytes(cell) * (matrices // 2 if cell.mode == "forward" else matrices)
