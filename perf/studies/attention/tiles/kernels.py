"""Kernels with tiles: the candidates that are tried, and the cells."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perf.harness.case import Case, ClockName
from perf.studies.attention.cells import CLOCKS, MASKS, Cell
from perf.studies.attention.groups import Problem
from perf.workloads.attention_choices import joined
from perf.workloads.attention_kernels import KERNELS, Kernel, Shape

MIN_SIZES = {"q": 16, "k": 16}
"""Minimum sizes of tl.dot; for any other number of a candidate it is 1."""

TOO_SLOW = 1.5
"""A candidate is too slow to sample if its first calls take so many times those of the fastest."""

HOST_S = 3e-4
"""Seconds of a call that may be its host's: eight launches take longer in Python than on the GPU."""


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

    def too_slow(self, first_s: Mapping[str, float]) -> dict[str, str]:
        """Return all candidates beyond `TOO_SLOW` and `HOST_S` except the one with which the others are compared."""
        best = min(first_s.values(), default=math.inf)
        return {
            impl: f"{seconds * 1e3:.4g} ms at first, {seconds / best:.2f} of the fastest"
            for impl, seconds in first_s.items()
            if seconds > max(TOO_SLOW * best, HOST_S) and impl != self.against
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
            return joined(numbers.values())
    allowed = f"{kernel.form}, as {kernel.candidates[0]}"
    if kernel.others_hang:
        allowed += f", with {', '.join(f'{what} of {values}' for what, values in kernel.values.items())}"
    else:
        allowed += ", all but stages powers of two, and tiles of 16 at least"
    raise ValueError(f"--candidate {candidate} was given; allowed for {name}: {allowed}")


def _can_be(kernel: Kernel, what: str, number: int) -> bool:
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
