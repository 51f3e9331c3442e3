"""The groups of the attention study: problems that answer one question each, with their modes, clock and arms."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from perf.harness.case import ClockName
from perf.workloads.attention_problem import BYTES

MODES = ("forward", "backward", "forward_backward")
FUSED = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
EVERY_D = range(16, 129, 8)

T = TypeVar("T")


class Problem(NamedTuple):
    """The axes of a cell that set its tensors and its answer."""

    batch: int
    num_heads: int
    kv_heads: int
    seq_len: int
    d: int
    dtype: str
    is_causal: bool


def grid(
    seq_lens: Sequence[int],
    heads: Sequence[tuple[int, int]],
    *,
    kv_heads: int | None = None,
    dtype: str = "bfloat16",
    is_causal: Sequence[bool] = (True,),
    tokens: int | None = None,
) -> tuple[Problem, ...]:
    """Return all combinations. `heads` are numbers of heads with d; `tokens`, all in all, set the batch, else one."""
    return tuple(
        Problem((tokens or n) // n, num_heads, kv_heads or num_heads, n, d, dtype, causal)
        for n, (num_heads, d), causal in itertools.product(seq_lens, heads, is_causal)
    )


def _listed(dtype: str, *shapes: tuple[int, int, int, int], is_causal: bool = True) -> tuple[Problem, ...]:
    """Return the problems of shapes (batch, heads, seq_len, d)."""
    return tuple(Problem(batch, heads, heads, n, d, dtype, is_causal) for batch, heads, n, d in shapes)


@dataclass(frozen=True, kw_only=True)
class CellGroup:
    """Problems that answer one question, and how they are compared."""

    asks: str
    listed: tuple[Problem, ...] = ()
    modes: tuple[str, ...] = ("forward_backward",)
    workload: str = "attention"
    clock: ClockName = "cuda_events"
    ours: tuple[str, ...] = ("triton",)

    peers: tuple[str, ...] = (*FUSED, "flex", "reference", "reference_compiled")
    """PyTorch's implementations with which ours are compared, where they take the cell."""

    def problems(self) -> Iterable[Problem]:
        """Return each problem once."""
        return self.listed


@dataclass(frozen=True, kw_only=True)
class Drawn(CellGroup):
    """A random sample, the same for the same seed on every machine; a larger `count` appends to it."""

    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    count: int = 150
    seed: int = 0
    batches: tuple[int, int] = (1, 32)
    heads: tuple[int, int] = (1, 39)
    seq_lens: tuple[int, int] = (128, 20000)

    def problems(self) -> Iterator[Problem]:
        """Yield `count` problems: log-uniform batches, heads and lengths; uniform d, dtype and mask."""
        uniform = random.Random(self.seed).random  # of its methods, the one that no version of Python changes
        ranges = (self.batches, self.heads, self.seq_lens)
        for _ in range(self.count):
            batch, heads, seq_len = (_log_uniform(*ends, uniform()) for ends in ranges)
            d, dtype = _one_of(EVERY_D, uniform()), _one_of(self.dtypes, uniform())
            yield _shrunk(Problem(batch, heads, heads, seq_len, d, dtype, is_causal=uniform() < 0.5))


def _one_of(values: Sequence[T], u: float) -> T:
    return values[int(u * len(values))]


def _log_uniform(low: int, high: int, u: float) -> int:
    """Return the integer of `low` to `high` at the quantile `u` in [0, 1)."""
    return min(high, int(low * ((high + 1) / low) ** u))


MAX_FLOPS = {"bfloat16": 4e12, "float16": 4e12, "float32": 5e11}
"""Maximum forward of a drawn problem. On an H200 SDPA's flash then takes 47 ms forward and backward in half precision,
and SDPA's efficient 60 ms in float32."""

MIN_D = 64  # with fewer columns the exponentials limit, so the time does not shrink with d
MAX_ELEMENTS = 2**27
"""Maximum of a drawn problem's q. The oracle's tensors of two problems take 64 bytes an element, the arms' inputs up to
48: 14 GiB."""


def fits(problem: Problem) -> bool:
    """Return whether a drawn problem is fast and small enough."""
    rows = problem.batch * problem.num_heads * problem.seq_len
    flops = 4 * rows * problem.seq_len * max(problem.d, MIN_D) / (2 if problem.is_causal else 1)
    return flops <= MAX_FLOPS[problem.dtype] and rows * problem.d <= MAX_ELEMENTS


def _shrunk(problem: Problem) -> Problem:
    """Halve the batch, then the heads, until the problem fits."""
    while not fits(problem):
        if problem.batch > 1:
            problem = problem._replace(batch=problem.batch // 2)
        else:
            half = problem.num_heads // 2
            problem = problem._replace(num_heads=half, kv_heads=half)
    return problem


GROUPS = {
    "grid": CellGroup(
        asks="32768 tokens, 16 heads x 128 and 32 x 64, causal and full, bfloat16: the papers' grid",
        listed=grid((1024, 2048, 4096, 8192, 16384), ((16, 128), (32, 64)), is_causal=(True, False), tokens=32768),
        modes=MODES,
    ),
    "leaderboard": CellGroup(
        asks="the timed call of the CS336 leaderboard: 16 heads, 16384 x 64, causal, sum and gradients included",
        listed=grid((16384,), ((16, 64),)),
        workload="attention_leaderboard",
    ),
    "long": CellGroup(
        asks="one head of 65536, causal, bfloat16, d 16 to 128: batch and heads alone fill no GPU",
        listed=grid((65536,), ((1, 16), (1, 32), (1, 64), (1, 128))),
        modes=("forward", "backward"),
    ),
    "short": CellGroup(
        asks="one head of 128 to 1024, causal, bfloat16, by the wall clock: launches and Python count",
        listed=grid((128, 256, 512, 1024), ((1, 16), (1, 32), (1, 64), (1, 128))),
        clock="gpu_wall",
    ),
    "float32": CellGroup(
        asks="16 heads of 4096, causal, d 64 and 128, float32; ours with TF32 allowed too",
        listed=grid((4096,), ((16, 64), (16, 128)), dtype="float32"),
        ours=("triton", "triton_tf32"),
    ),
    "gqa": CellGroup(
        asks="64 heads of queries and 8 of keys, d 128, one sequence, causal and full, bfloat16: grouped heads",
        listed=grid((2048, 4096, 8192, 16384, 32768), ((64, 128),), kv_heads=8, is_causal=(True, False)),
        modes=("forward", "backward"),
        peers=("sdpa_flash", "sdpa_cudnn"),
    ),
    "aside": CellGroup(
        asks="a step aside of the grid: 2.7B's and xl's own heads, few heads, d of 80 to 112, short float32",
        modes=MODES,
        peers=(*FUSED, "sdpa_math"),
        listed=(
            *_listed("bfloat16", (4, 32, 1024, 80), (4, 25, 1024, 64), (1, 40, 2048, 128), (1, 4, 8192, 112)),
            *_listed("bfloat16", *((1, 8, n, d) for n, d in ((2048, 64), (2048, 80), (4096, 80), (2048, 128)))),
            *_listed("bfloat16", (1, 1, 1024, 80), (1, 1, 1024, 128)),
            *_listed("float16", (2, 11, 5000, 96), is_causal=False),
            *_listed("float32", *((1, 1, n, d) for d in (64, 80, 128) for n in (256, 1024, 2048)), (1, 1, 4096, 80)),
            *_listed("float32", *((1, 1, n, 32) for n in (1024, 2048, 4096)), (1, 8, 256, 128), (1, 8, 1024, 128)),
        ),
    ),
    "random": Drawn(
        asks="150 problems drawn by --seed: any length, batch, heads, d and dtype; nobody tuned for them",
        modes=("forward", "forward_backward"),
        peers=(*FUSED, "sdpa_math"),  # what compiles would compile for every shape
    ),
}


def document_of(group: str) -> str:
    """Return the name of the document with a group's rows; a run replaces those of its groups."""
    return f"attention-{group}"


_TINY: dict[str, dict[str, Any]] = {
    "grid": {"listed": grid((64, 128), ((2, 16),), is_causal=(True, False), tokens=256)},
    "leaderboard": {"listed": grid((64,), ((2, 16),))},
    "long": {"listed": grid((512,), ((1, 16),))},
    "short": {"listed": grid((16, 32), ((1, 16),))},
    "float32": {"listed": grid((64,), ((2, 16),), dtype="float32")},
    "gqa": {"listed": grid((64,), ((4, 16),), kv_heads=2, is_causal=(True, False))},
    "aside": {"listed": _listed("float32", (1, 2, 40, 24))},
    "random": {"count": 8, "batches": (1, 2), "heads": (1, 3), "seq_lens": (16, 128), "dtypes": tuple(BYTES)},
}


def groups_of(device: str, *, tiny: bool = False) -> dict[str, CellGroup]:
    """Return `GROUPS`; if tiny, and on a CPU, with cells that all together take seconds."""
    if device == "cuda" and not tiny:
        return GROUPS
    groups = {name: replace(group, **_TINY[name]) for name, group in GROUPS.items()}
    if device == "cpu":
        for name, group in groups.items():
            listed = tuple(problem._replace(dtype="float32") for problem in group.listed)
            groups[name] = replace(group, listed=listed, clock="wall", ours=("pytorch",))
    return groups


def drawn(groups: dict[str, CellGroup], **given: int | None) -> dict[str, CellGroup]:
    """Return the groups, the drawn ones with the given parameters. Raises `ValueError` if none is drawn."""
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    samples = {name: replace(group, **changes) for name, group in groups.items() if isinstance(group, Drawn)}
    if changes and not samples:
        name, value = next(iter(changes.items()))
        raise ValueError(f"--{name} {value} was given; allowed: with --group random")
    return groups | samples
