"""Kernels with tiles: the table of each, the candidates that are tried, and the cells."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perf.harness.case import Case, ClockName
from perf.studies.attention.cells import CLOCKS, MASKS, Cell
from perf.studies.attention.groups import Problem
from perf.workloads.attention_launches import WAYS

ROWS, WARPS = (32, 64, 128), (4, 8)
MIN_SIZES = {"q": 16, "k": 16}
"""Minimum sizes of tl.dot; for any other number of a candidate it is 1."""

RACE = 1.5
"""A candidate is out of the race if its first calls take so many times those of the fastest."""

HOST_S = 3e-4
"""Seconds of a call that may be its host's: eight launches take longer in Python than on the GPU."""

Shape = tuple[int, ...]
"""batch, heads, seq_len, and the heads of k and v if these are fewer."""


@dataclass(frozen=True)
class TunedKernel:
    """A kernel with its candidates and cells."""

    table: str
    """The table of `cs336_systems.attention`, in `tiles` or `hopper_tables`, in words."""

    values: dict[str, tuple[int, ...]]
    """The meaning of a candidate's numbers, and the values that are tried."""

    shapes: tuple[Shape, ...]
    mode: str = "backward"
    dims: tuple[int, ...] = (16, 32, 64, 128)
    dtypes: tuple[str, ...] = ("bfloat16", "float32")

    others_hang: bool = False
    """Whether other values hang: warps that wait for each other are written for these alone."""

    suits: Callable[..., bool] = lambda *numbers: True
    """Whether a combination is worth a try."""

    @property
    def form(self) -> str:
        """The form in which a candidate is written."""
        return " x ".join(self.values)

    @property
    def candidates(self) -> tuple[str, ...]:
        """All combinations that suit."""
        return tuple(_joined(each) for each in itertools.product(*self.values.values()) if self.suits(*each))


@dataclass(frozen=True)
class TileCell(Cell):
    """A cell of one kernel, `group`, whose arms are its candidates."""

    entry: str = ""
    """The entry of the tables."""

    against: str = ""
    """The entry's candidate, with which all others are compared."""

    def case(self, impl: str, device: Literal["cuda", "cpu"]) -> Case:
        """Return the harness's case of a candidate, `impl`."""
        whole = {"tokens": self.batch * self.seq_len, "d_model": self.num_heads * self.d}
        shape = {"seq_len": self.seq_len, "d": self.d, "dtype": self.dtype, "is_causal": self.is_causal}
        params: dict[str, Any] = {"kernel": self.group, "tiles": impl} | shape | whole
        params |= {"kv_heads": self.kv_heads} if self.kv_heads != self.num_heads else {}
        return Case("study", "attention_tiles", params, device, self.clock, self.cache)

    def out_of_the_race(self, first_s: Mapping[str, float]) -> dict[str, str]:
        """Return all candidates beyond `RACE` and `HOST_S` except the one with which the others are compared."""
        best = min(first_s.values(), default=math.inf)
        return {
            impl: f"{seconds * 1e3:.4g} ms at first, {seconds / best:.2f} of the fastest"
            for impl, seconds in first_s.items()
            if seconds > max(RACE * best, HOST_S) and impl != self.against
        }


def _few_scores(q: int, k: int, warps: int, *others: int) -> bool:
    """Return whether a thread has 8 to 64 scores: more would spill."""
    return 8 <= q * k // (32 * warps) <= 64


def _hopper_forward(
    k: int,
    stages: int,
    q_stages: int,
    consumers: int,
    halves: int,
    one_tile: int,
    balanced: int,
    ping_pong: int,
    at_once: int,
) -> bool:
    """Return whether the shared memory and registers are used, and each other choice can matter."""
    if consumers == 1:
        return one_tile == 1 and (stages, q_stages, halves, balanced, ping_pong) == (2, 1, 0, 0, 0)
    fits = (stages, consumers < 4) == (2, True) if k == 128 else (stages, halves) == (4, 0)
    in_turns = not ping_pong or (k, consumers) == (128, 2)  # of consumers that visit the same tiles of keys
    return fits and in_turns and at_once == 1 and not (one_tile and (q_stages > 1 or balanced))


def _joined(numbers: Iterable[int]) -> str:
    return "x".join(map(str, numbers))


PLAIN = {"q": ROWS, "k": ROWS, "warps": WARPS, "stages": (1, 2, 3)}
MANY: tuple[Shape, ...] = ((2, 16, 16384), (8, 16, 4096), (32, 32, 1024))
ALL: tuple[Shape, ...] = ((1, 1, 4096), (1, 1, 65536), (2, 16, 16384), (32, 32, 1024))
FEW: tuple[Shape, ...] = (
    (1, 1, 1024),
    (1, 1, 2048),
    (1, 1, 8192),
    (1, 2, 8192),
    (1, 4, 4096),
    (1, 8, 2048),
    (1, 16, 1024),
    (1, 32, 1024),
    (1, 64, 512),
)

KERNELS = {
    "forward": TunedKernel("FORWARD_TILES", PLAIN, ALL, mode="forward", suits=_few_scores),
    "dkdv": TunedKernel("DKDV_TILES", PLAIN, ALL, suits=_few_scores),
    "dq": TunedKernel("DQ_TILES, SHORT_GRID_TILES", PLAIN, ALL, suits=_few_scores),
    "at-once": TunedKernel(
        "AT_ONCE_TILES: both passes in one launch",
        PLAIN | {"stages": (2, 3)},
        shapes=((1, 1, 1024), (1, 1, 4096), (1, 8, 512)),
        dtypes=("bfloat16",),
        suits=_few_scores,
    ),
    "split": TunedKernel(
        "SPLIT_TILES, and the parts that split_keys makes; 1: not split",
        {"q": (64, 128), "k": (64, 128), "warps": WARPS, "stages": (2, 3), "parts": (1, 2, 4, 8, 16)},
        shapes=((1, 1, 1024), (1, 1, 2048), (1, 1, 4096), (1, 1, 8192), (1, 8, 2048)),
        mode="forward",
        dtypes=("bfloat16",),
        suits=_few_scores,
    ),
    "hopper-forward": TunedKernel(
        "HOPPER_FORWARD and its replacements, but for registers",
        {
            "k": (64, 128),
            "stages": (2, 4),
            "q stages": (1, 2),
            "consumers": (1, 2, 3, 4),
            "halves": (0, 1),
            "one tile": (0, 1),
            "balanced": (0, 1),
            "ping-pong": (0, 1),
            "at once": (1, 2, 3),
        },
        (*MANY, (4, 16, 8192), (32, 16, 1024), (1, 8, 2048)),
        mode="forward",
        dims=(64, 128),
        dtypes=("bfloat16",),
        others_hang=True,
        suits=_hopper_forward,
    ),
    "hopper-backward": TunedKernel(
        "HOPPER_BACKWARD, but for registers",
        {"q": (64,), "stages": (2, 3), "ds stages": (1, 2)},
        MANY,
        dims=(64, 128),
        dtypes=("bfloat16",),
        others_hang=True,
    ),
    "backward-programs": TunedKernel(
        "backward_splits and backward_heads_at_once; 0 heads: as the latter says",
        {"splits": (1, 2, 4, 8, 16), "heads at once": (0, 1, 4, 16, 64)},
        ((1, 1, 1024), (1, 1, 4096), (1, 64, 2048, 8), (1, 64, 8192, 8), (1, 64, 32768, 8), (8, 16, 4096)),
        dims=(64, 128),
        others_hang=True,
    ),
    **{
        f"float32-{mode}": TunedKernel(
            "HOPPER_FLOAT32 of three pieces: one entry for both kernels",
            {"stages": (1, 2), "registers": (200, 216, 232, 240)} | of_mode,
            shapes=((1, 1, 8192), (1, 16, 4096), (2, 16, 16384), (32, 32, 1024)),
            mode=mode,
            dims=(16, 32, 64, 128),
            dtypes=("float32",),
            others_hang=True,
        )
        for mode, of_mode in (("forward", {"consumers": (1, 2)}), ("backward", {}))
    },
    **{
        name: TunedKernel(
            "the choice: " + ", ".join(f"{number} {way}" for number, way in enumerate(ways)),
            {"way": tuple(range(len(ways)))},
            shapes=FEW,
            mode=name.removesuffix("-choice"),
            dims=(16, 32, 64, 80, 128),
            others_hang=True,
        )
        for name, ways in WAYS.items()
    },
}


def candidates_of(name: str, *, tiny: bool) -> tuple[str, ...]:
    """Return the candidates of a kernel; if tiny only two, unless others hang."""
    if not tiny or KERNELS[name].others_hang:
        return KERNELS[name].candidates
    return ("32x32x4x1x1", "16x16x4x1x2") if name == "split" else ("32x32x4x1", "32x16x4x1")


def checked(name: str, candidate: str) -> str:
    """Return the candidate if this kernel can have it. Raises `ValueError` with one line."""
    kernel = KERNELS[name]
    words = candidate.split("x")
    if len(words) == len(kernel.values) and all(word.isdecimal() for word in words):
        numbers = dict(zip(kernel.values, map(int, words), strict=True))
        if all(_can_be(kernel, what, number) for what, number in numbers.items()):
            return _joined(numbers.values())
    allowed = f"{kernel.form}, as {kernel.candidates[0]}"
    if kernel.others_hang:
        allowed += f", with {', '.join(f'{what} of {values}' for what, values in kernel.values.items())}"
    else:
        allowed += ", all but stages powers of two, and tiles of 16 at least"
    raise ValueError(f"--candidate {candidate} was given; allowed for {name}: {allowed}")


def _can_be(kernel: TunedKernel, what: str, number: int) -> bool:
    if kernel.others_hang:
        return number in kernel.values[what]
    return number >= MIN_SIZES.get(what, 1) and (what == "stages" or number.bit_count() == 1)


def shape_of(text: str) -> Shape:
    """Return `2x16x16384`, or `1x64x2048x8` of fewer key heads, as numbers. Raises `ValueError` with one line."""
    words = text.split("x")
    shape = tuple(map(int, words)) if all(word.isdecimal() for word in words) else ()
    if len(shape) not in (3, 4) or 0 in shape or (len(shape) == 4 and shape[1] % shape[3]):
        raise ValueError(f"--cell {text} was given; allowed: batch x heads x seq_len, as 2x16x16384")
    return shape


def problems_of(
    name: str, shapes: Sequence[Shape], dims: Sequence[int], device: str, *, tiny: bool = False
) -> Iterator[Problem]:
    """Yield a kernel's problems of these shapes and dims or its own; on a CPU or if tiny, of a tiny one."""
    kernel, few = KERNELS[name], 1 if tiny else None
    own, dtypes = ((16,), ("float32",)) if device == "cpu" else (kernel.dims[:few], kernel.dtypes[:few])
    shapes = shapes or (((1, 2, 32),) if device == "cpu" or tiny else kernel.shapes)
    for dtype, d, is_causal, (batch, heads, n, *kv) in itertools.product(dtypes, dims or own, MASKS, shapes):
        yield Problem(batch, heads, kv[0] if kv else heads, n, d, dtype, is_causal)


def cells_of(name: str, problems: Iterable[Problem], device: str) -> Iterator[TileCell]:
    """Yield a kernel's cell for each problem; on a CPU without bfloat16, which Triton's interpreter gets wrong."""
    clock: ClockName = "cuda_events" if device == "cuda" else "wall"
    for problem in problems:
        if device == "cuda" or problem.dtype != "bfloat16":
            how: dict[str, Any] = {"clock": clock, "cache": CLOCKS.get(clock, "warm")}
            yield TileCell(group=name, mode=KERNELS[name].mode, **problem._asdict(), **how)
