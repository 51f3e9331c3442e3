"""Which cuts of a series stand when its commits may depend on each other? Pure functions of numbers.

Two explanations of the same numbers are compared: levels between cuts with independent noise, and fewer levels, or a
straight line, with noise that hangs together. That noise has three parts: independent from commit to commit; wandering,
of any strength and memory from none to a random walk; and an offset that the commits of one session share. Their shares
are fitted on both sides (a variance-components model: Harville 1977), so a cut stands only where neither wandering nor
the scatter between sessions explains it for less. In the cosine basis the first two are diagonal, since the cosines are
the eigenvectors of a path graph's Laplacian, whose pseudo-inverse is the covariance of a random walk (Strang 1999).
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
"""In -2 log likelihood. The least that keeps every model of `models.flat` at 5 % (14 lets 5.2 % of unknown sessions
through) leaves a tenth at 2 % of noise, three commits old, at 88 in 100."""

PER_LINE = 4.0
"""The same, where a line stands beside cuts: a line has no place to be searched for."""

_WANDERING = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_FORGETTING = (0.0, 0.05, 0.5)
"""0 is a random walk, 0.05 an AR(1) of 0.8, 0.5 one of 0.5: (1 - a) ** 2 / a."""

_SESSIONS = (0.0, 0.5, 3.0, 30.0, 300.0, 3e3, 3e4, 3e5)
"""The two variances above, in units of the independent part's variance."""

MOST_BETWEEN = 0.1
"""Standard deviation of a session's offset, of logarithms. More is no machine's: wall times of eager steps, which move
most, move by 11 % between processes. So of two sessions a step of half the time and more is a change."""


@dataclass(frozen=True)
class Explained:
    """The best explanation of a series."""

    cuts: tuple[int, ...]
    line: bool
    """Whether the mean also follows a straight line."""


def explain(values: "Array", cuts: Sequence[int], sessions: Sequence[int] | None, least: float) -> Explained:
    """The best of `cuts`, found by leaving out one after another; with and without a line.

    `values`, `least` (the independent part's smallest standard deviation): logarithms. `sessions`: of each value, equal
    for those that may share an offset; None where nobody knows.
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
    """-2 log likelihood of levels between `cuts`, under the noise that makes it smallest."""
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


@functools.lru_cache(maxsize=16)  # the series of a machine have few histories among them; 100 commits are 12 MB
def _noises(count: int, sessions: tuple[int, ...] | None) -> "tuple[Array, Array, Array]":
    """Of each noise: what makes it white, without the mean; its log determinant; its sessions' share of variance."""
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
