"""The bounds on an implementation's answer: on its worst row, its slope and the RMS of its errors."""

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
    """Maximum errors of an answer. Rows are measured in units of `attention_oracle.row_scales`."""

    row: float
    """Error of the worst row. Half precision: sixteen units in the last place. `out` is rounded before delta is
    computed from it, which gives ten units in the worst of the million rows of 32768 tokens and 32 heads (dq, 8.1e-2 in
    bfloat16, for ours and every backend of PyTorch's); an omitted tile gives over a hundred. float32: between the error
    of all backends for up to 65536 terms (2.9e-5) and that of TF32 (3e-4), which has the bits of float16."""

    slope: float
    """Distance from 1 of <actual, exact> / <exact, exact> of a head. Rounding to nearest is unbiased, and a head's
    slope averages thousands of elements: less than 2e-4 in bfloat16 (CPU). A float32 row is off by at most 2.9e-5, and
    by the Cauchy-Schwarz inequality a slope by little more than the RMS. TF32 truncates: by 2^-11 ln 2 / (2 (ln 2)^2) =
    3.5e-4 an operand on average, always towards 0. Two operands a product and up to three products in a chain (scores
    or dp, ds, dq) give 2.1e-3, and at most (1 - 2^-10)^6, 5.9e-3."""

    rms: float
    """Allowed excess of the RMS of a head's errors over twice that of eager attention: a quarter of a unit in the last
    place in half precision, about the error of rounding the answer itself. Eager float32 multiplies without tensor
    cores, which truncate their sums, so the RMS may be the worst row of three TF32 products (sdpa_efficient,
    2.9e-5)."""

    rounding: float
    """Allowed relative difference of two correct answers (norms), above which a gate reports it: a unit in the last
    place in half precision, where each has an RMS error of up to half a unit; ten times that of sums of 4096 float32
    terms."""


TOLERANCES = {
    "bfloat16": Tolerance(row=16 * 2**-7, slope=2e-3, rms=2**-9, rounding=2**-7),
    "float16": Tolerance(row=16 * 2**-10, slope=2e-3, rms=2**-12, rounding=2**-10),
    "float32": Tolerance(row=1e-4, slope=1e-4, rms=3e-5, rounding=1e-5),
    "tf32": Tolerance(row=16 * 2**-10, slope=6e-3, rms=2**-12, rounding=2**-8),
}
TIMES_EAGER = 2.0
TIMES_ENDS = 2.0
"""Factor on rows where a last key dominates: scores of up to 16 are rounded there, and dp - delta cancels. Eager
bfloat16 reaches 0.54 of the bound of other rows (512 keys, CPU), an omitted key 8 times that bound."""

CHUNK = 2**24  # elements compared at a time: 128 MiB in float64


@dataclass(frozen=True)
class Bound:
    """An error and its bound."""

    what: str
    """row, slope or rms."""

    tensor: str
    """out, dq, dk or dv."""

    keys: str
    """The problem's keys: random or ends."""

    error: float
    allowed: float

    @property
    def share(self) -> float:
        """Return the error over its bound: above 1 the bound is violated. NaN stays NaN."""
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
    """Compare `answer(problem)`, any of out, dq, dk, dv, with every bound; return the error of the worst row.

    Where the last keys dominate (`AttentionProblem.keys`), only the rows are looked at: a key that was not seen is off
    by its whole weight, and few elements decide about a slope there. `precision` is a key of `TOLERANCES`. Raises
    `WrongResult` with the first bound that is broken.
    """
    checked = bounds(problem, device, answer(problem), precision)
    ends = dataclasses.replace(problem, keys="ends")
    checked += bounds(ends, device, answer(ends), precision)
    if _watched is not None:
        _watched.extend(checked)
        return 0.0
    for bound in checked:
        if not bound.share <= 1:  # NaN compares false
            raise WrongResult(str(bound))
    return max(bound.error for bound in checked if bound.what == "row" and bound.keys == "random")


def bounds(problem: AttentionProblem, device: str, answer: Answer, precision: str) -> list[Bound]:
    """Return every bound on `answer`, each for the worst head or row."""
    is_random = problem.keys == "random"
    allowed = TOLERANCES[precision]
    exact = oracle(problem, device, precision if is_random else None)
    checked = []
    for name, tensor in answer.items():
        allowed_form = tuple(exact.answer[name].shape), f"torch.{problem.dtype}"
        if (form := (tuple(tensor.shape), str(tensor.dtype))) != allowed_form:
            raise WrongResult(f"{name} has shape and dtype {form}; allowed: {allowed_form}")
        rows, slopes, rms = _errors(tensor.detach(), exact.answer[name])
        allowed_row = allowed.row if is_random else TIMES_ENDS * allowed.row
        checked.append(Bound("row", name, problem.keys, float(rows.max()), allowed_row))
        if is_random:
            checked.append(Bound("slope", name, problem.keys, float(slopes.max()), allowed.slope))
            allowed_rms = TIMES_EAGER * exact.eager_rms[name] + allowed.rms
            worst = int((rms / allowed_rms).argmax())  # argmax returns the index of a NaN
            checked.append(Bound("rms", name, problem.keys, float(rms[worst]), float(allowed_rms[worst])))
    return checked


@contextmanager
def every_bound() -> Iterator[list[Bound]]:
    """Collect all checked bounds in a list inside the block, and refuse nothing: for tables of margins."""
    global _watched
    checked: list[Bound] = []
    _watched = checked
    try:
        yield checked
    finally:
        _watched = None


_watched: list[Bound] | None = None


def _errors(actual: Any, exact: Any) -> tuple[Any, Any, Any]:
    """Return for each head the worst row's error, the distance of the slope from 1, the RMS of the rows' errors.

    The slope is taken for each head, because an error of 1 % in one head of 512 moves the slope of all by 2e-5; and
    over rows in units of their scales, because the first few rows of a causal head have most of its norm.
    """
    import torch

    actual, exact = actual.flatten(0, -3), exact.flatten(0, -3)
    heads = max(1, CHUNK // exact[0].numel())
    parts = []
    for ours, true in zip(actual.split(heads), exact.split(heads), strict=True):
        errors, scales = row_errors(ours, true), row_scales(true)[..., None]
        scaled = true / scales
        slopes = ((ours.double() / scales - scaled) * scaled).sum((-2, -1)) / scaled.square().sum((-2, -1))
        parts.append((errors.amax(-1), slopes.abs(), errors.square().mean(-1).sqrt()))
    rows, slopes, rms = (torch.cat(part) for part in zip(*parts, strict=True))
    return rows, slopes, rms
