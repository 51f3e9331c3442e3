"""The bounds that an implementation's answer has to keep: on its worst row, its slope and the RMS of its errors."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from perf.workloads.attention_oracle import Answer, oracle, row_errors, row_scales
from perf.workloads.attention_problem import AttentionProblem
from perf.workloads.workload import WrongResult


@dataclass(frozen=True)
class Tolerance:
    """How far off an answer may be. Rows are measured in units of `attention_oracle.row_scales`."""

    row: float
    """Error of the worst row. Sixteen units in the last place for the half precisions: out is rounded before delta is
    taken from it, and in the worst of the million rows of 32768 tokens and 32 heads that makes ten (dq, 8.1e-2 in
    bfloat16, for every backend of PyTorch's and for ours); a tile left out makes over a hundred. For float32 between
    what all backends make up to 65536 terms (2.9e-5) and what TF32 gives (3e-4), which has the bits of float16."""

    slope: float
    """Distance from 1 of <found, exact> / <exact, exact> of a head. Rounding to nearest goes either way, and the slope
    of a head averages thousands of elements: less than 2e-4 in bfloat16 (CPU). A float32 row is off by 2.9e-5 at most,
    and by Cauchy and Schwarz a slope by little more than the RMS. TF32 cuts bits off: by 2^-11 ln 2 / (2 (ln 2)^2) =
    3.5e-4 an operand on average, always towards 0. Two operands a product and up to three products in a chain (scores
    or dp, ds, dq) make 2.1e-3, and at most (1 - 2^-10)^6, 5.9e-3."""

    rms: float
    """What the RMS of a head's errors may be above twice that of eager attention: a quarter of a unit in the last place
    in half precision, about what rounding the answer itself makes. Eager float32 multiplies without tensor cores, which
    truncate their sums: the worst row of three TF32 products (sdpa_efficient, 2.9e-5) is allowed to be the RMS."""

    rounding: float
    """What two right answers may differ by, over the norm of one, before a gate says so: a unit in the last place in
    half precision, where each has an RMS error of up to a half; ten times what sums of 4096 float32 terms make."""


TOLERANCES = {
    "bfloat16": Tolerance(row=16 * 2**-7, slope=2e-3, rms=2**-9, rounding=2**-7),
    "float16": Tolerance(row=16 * 2**-10, slope=2e-3, rms=2**-12, rounding=2**-10),
    "float32": Tolerance(row=1e-4, slope=1e-4, rms=3e-5, rounding=1e-5),
    "tf32": Tolerance(row=16 * 2**-10, slope=6e-3, rms=2**-12, rounding=2**-8),
}
TIMES_EAGER = 2.0
TIMES_ENDS = 2.0
"""On rows where a last key dominates: scores of up to 16 are rounded there, and dp - delta cancels. Eager bfloat16 gets
to 0.54 of the bound on other rows (512 keys, CPU), a key that was not seen to 8 times that."""

CHUNK = 2**24  # elements looked at together: 128 MiB in float64


@dataclass(frozen=True)
class Bound:
    """One bound and what was found."""

    what: str
    """row, slope or rms."""

    tensor: str
    """out, dq, dk or dv."""

    keys: str
    """Of the problem: random or ends."""

    error: float
    allowed: float

    @property
    def share(self) -> float:
        """Of what is allowed; above 1 it is broken. NaN stays NaN."""
        return self.error / self.allowed

    def __str__(self) -> str:
        where = " where the last keys dominate" if self.keys == "ends" else ""
        words = {
            "row": f"{self.tensor} differs from float64 by {self.error:.1e} of a row's norm",
            "slope": f"the slope of {self.tensor} against float64 is off by {self.error:.1e} in a head",
            "rms": f"{self.tensor} differs from float64 by {self.error:.1e} (RMS of a head's rows)",
        }
        return f"{words[self.what]}{where}, allowed {self.allowed:.1e}"


def largest_error(
    problem: AttentionProblem, device: str, answer: Callable[[AttentionProblem], Answer], precision: str
) -> float:
    """Hold `answer(problem)`, any of out, dq, dk, dv, to every bound; returns the error of the worst row.

    Where the last keys dominate (`AttentionProblem.keys`), only the rows are looked at: a key that was not seen is off
    by its whole weight, and few elements decide about a slope there. `precision` is a key of `TOLERANCES`. Raises
    `WrongResult` with the first bound that is broken.
    """
    found = bounds(problem, device, answer(problem), precision)
    ends = dataclasses.replace(problem, keys="ends")
    found += bounds(ends, device, answer(ends), precision)
    if _watched is not None:
        _watched.extend(found)
        return 0.0
    for one in found:
        if not one.share <= 1:  # NaN compares false
            raise WrongResult(str(one))
    return max(one.error for one in found if one.what == "row" and one.keys == "random")


def bounds(problem: AttentionProblem, device: str, answer: Answer, precision: str) -> list[Bound]:
    """Every bound on `answer`, the worst head's or row's each."""
    is_random = problem.keys == "random"
    allowed = TOLERANCES[precision]
    exact = oracle(problem, device, precision if is_random else None)
    found = []
    for name, tensor in answer.items():
        rows, slopes, rms = _errors(tensor.detach(), exact.answer[name])
        most = allowed.row if is_random else TIMES_ENDS * allowed.row
        found.append(Bound("row", name, problem.keys, float(rows.max()), most))
        if is_random:
            found.append(Bound("slope", name, problem.keys, float(slopes.max()), allowed.slope))
            allowed_rms = TIMES_EAGER * exact.eager_rms[name] + allowed.rms
            worst = int((rms / allowed_rms).argmax())  # NaN, if there is one
            found.append(Bound("rms", name, problem.keys, float(rms[worst]), float(allowed_rms[worst])))
    return found


@contextmanager
def every_bound() -> Iterator[list[Bound]]:
    """Meanwhile nothing is refused, and all bounds that are checked end up in the list: for tables of margins."""
    global _watched
    found: list[Bound] = []
    _watched = found
    try:
        yield found
    finally:
        _watched = None


_watched: list[Bound] | None = None


def _errors(found: Any, exact: Any) -> tuple[Any, Any, Any]:
    """Of each head: the worst row's error, the distance of the slope from 1, the RMS of the rows' errors.

    The slope is taken head by head, because one head of 512 that is 1 % off moves that of the whole by 2e-5; and over
    rows in units of their scales, because the first few rows of a causal head hold most of its norm.
    """
    import torch

    assert found.shape == exact.shape
    found, exact = found.flatten(0, -3), exact.flatten(0, -3)
    heads = max(1, CHUNK // exact[0].numel())
    parts = []
    for ours, true in zip(found.split(heads), exact.split(heads), strict=True):
        errors, scales = row_errors(ours, true), row_scales(true)[..., None]
        scaled = true / scales
        slopes = ((ours.double() / scales - scaled) * scaled).sum((-2, -1)) / scaled.square().sum((-2, -1))
        parts.append((errors.amax(-1), slopes.abs(), errors.square().mean(-1).sqrt()))
    rows, slopes, rms = (torch.cat(part) for part in zip(*parts, strict=True))
    return rows, slopes, rms
