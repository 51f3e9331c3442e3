"""Model selection for the cuts of a series whose commits may be correlated. Pure functions of numbers.

Each model has levels between cuts, with or without a straight line, and correlated noise. The noise is the sum of three
parts: white noise; a correlated process, from AR(1) of short memory to a random walk; and an offset common to the
commits of one session. Their variances are fitted to every model (variance components: Harville 1977), so a cut stays
only where neither correlation nor the scatter between sessions explains it at a lower cost. The first two parts are
diagonal in the cosine basis: cosines are the eigenvectors of a path graph's Laplacian, whose pseudo-inverse is the
covariance of a random walk (Strang 1999).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

PER_CUT = 14.5
"""Penalty of a cut, in -2 log likelihood.

It is the lowest that keeps every model of `models.flat` at 5 % false alarms; 14 gives 5.2 % for unrecorded sessions.
A step of 10 % is then detected in 88 of 100 histories with 2 % noise, three commits after it.
"""

PER_LINE = 4.0
"""Penalty of a line. It is lower because a line has no position to search for."""

_WANDERING = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_FORGETTING = (0.0, 0.05, 0.5)
"""(1 - a) ** 2 / a of an AR(1) with coefficient a: 0 is a random walk, 0.05 is a = 0.8, 0.5 is a = 0.5."""

_SESSIONS = (0.0, 0.5, 3.0, 30.0, 300.0, 3e3, 3e4, 3e5)
"""Variance of the sessions' offsets. It and `_WANDERING` are in units of the white noise's variance."""

MOST_BETWEEN = 0.1
"""Maximum standard deviation of a session's offset, in logarithms.

The noisiest series on file, wall times of eager steps, moves by 11 % between processes. A step of half the time between
two sessions is therefore a change.
"""


@dataclass(frozen=True)
class Explained:
    """The best explanation of a series."""

    cuts: tuple[int, ...]
    line: bool
    """Whether the mean also follows a straight line."""


def explain(values: "Array", cuts: Sequence[int], sessions: Sequence[int] | None, least: float) -> Explained:
    """Select the best of `cuts` by backward elimination, with and without a line.

    `values` and `least`, the minimum standard deviation of the white noise, are logarithms. `sessions` numbers each
    value's session; None if unknown.
    """
    found = []
    for line in (False, True):
        left = list(cuts)
        cost = deviance(values, left, line, sessions, least)
        found.append((cost + PER_CUT * len(left) + PER_LINE * line, tuple(left), line))
        while left:
            fewer = [[one for one in left if one != out] for out in left]
            cost, left = min((deviance(values, some, line, sessions, least), some) for some in fewer)
            found.append((cost + PER_CUT * len(left) + PER_LINE * line, tuple(left), line))
    _, kept, line = min(found)
    return Explained(kept, line)


def deviance(values: "Array", cuts: Sequence[int], line: bool, sessions: Sequence[int] | None, least: float) -> float:
    """Return -2 log likelihood of levels between `cuts` under the best-fitting noise."""
    import numpy as np

    whiten, log_determinants, between = _noises(len(values), None if sessions is None else tuple(sessions))
    at = np.arange(len(values))
    shapes = [at >= cut for cut in cuts] + [at / len(values)] * line
    white = whiten @ values
    if shapes:
        basis, _ = np.linalg.qr(whiten @ np.array(shapes, dtype=float).T)
        white -= (basis @ (basis.transpose(0, 2, 1) @ white[..., None]))[..., 0]
    squares, count = (white**2).sum(axis=1), len(values) - 1
    variance = np.maximum(squares / count, least**2)
    costs = count * np.log(variance) + squares / variance + log_determinants
    return float(costs[between * variance <= MOST_BETWEEN**2].min())


@functools.lru_cache(maxsize=16)  # Series of a machine share few histories. 100 commits take 12 MB.
def _noises(count: int, sessions: tuple[int, ...] | None) -> "tuple[Array, Array, Array]":
    """Return each noise's whitening matrix without the mean, log determinant and session variance."""
    import numpy as np
    from scipy.fft import dct

    cosines = dct(np.eye(count), norm="ortho", axis=0)[1:]
    frequencies = 2 - 2 * np.cos(np.pi * np.arange(1, count) / count)
    kinds = [(0.0, 0.0)] + [(much, fast) for much in _WANDERING[1:] for fast in _FORGETTING]
    covariances = np.array([np.diag(1 + much / (frequencies + fast)) for much, fast in kinds])
    between = np.zeros(len(kinds))
    if sessions is not None and 1 < len(set(sessions)) < count:
        shared = cosines @ np.equal.outer(sessions, sessions) @ cosines.T
        covariances = np.concatenate([covariances + much * shared for much in _SESSIONS])
        between = np.repeat(_SESSIONS, len(kinds))
    roots = np.linalg.cholesky(covariances)
    return np.linalg.solve(roots, cosines), 2 * np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1), between
