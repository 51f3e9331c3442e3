"""Random histories without a change, in standard deviations (SD) of the noise of one commit.

`flat` lists the models in which the detector must report a change in at most 5 % of histories. `hidden` lists models
that hold a level as a change does, so that no detector can tell them from changes by the numbers alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

Draw = Callable[[int, Any], "Array"]
"""Draws a number of values with numpy's generator."""

LENGTHS = (3, 8, 1, 12, 5, 11)
"""Lengths of irregular sessions, in commits."""


@dataclass(frozen=True)
class NoiseModel:
    """One model of noise, with its name on the Trust page."""

    words: str
    draw: Draw
    sessions: Callable[[int], list[int]] | None = None
    """Session numbers of a number of commits; None if the records do not name sessions."""


def flat() -> list[NoiseModel]:
    """Models of which at most 5 of 100 histories may show a change."""
    import numpy as np

    return [
        NoiseModel("normal noise", lambda n, rng: rng.standard_normal(n)),
        NoiseModel(
            "Student's t noise, 5 degrees of freedom",
            lambda n, rng: rng.standard_t(5, n) / np.sqrt(5 / 3),
        ),
        NoiseModel("Student's t noise, 3 degrees of freedom", lambda n, rng: rng.standard_t(3, n) / np.sqrt(3)),
        NoiseModel("exponential noise", lambda n, rng: rng.exponential(size=n)),
        NoiseModel("sessions of 8 commits, offsets of 1 SD", _shared(eights, 1), eights),
        NoiseModel("sessions of 8 commits, offsets of 3 SD", _shared(eights, 3), eights),
        NoiseModel("sessions of 1 to 12 commits, offsets of 3 SD", _shared(uneven, 3), uneven),
        NoiseModel("unrecorded sessions of 8 commits, offsets of 1 SD", _shared(eights, 1)),
        NoiseModel("AR(1) noise, coefficient 0.5", _autoregressive(0.5)),
        NoiseModel("AR(1) noise, coefficient 0.8", _autoregressive(0.8)),
        NoiseModel("AR(1) noise, coefficient 0.95", _autoregressive(0.95)),
        NoiseModel("outliers of 2.5 SD, one commit in eight", _bad_runs(2.5)),
        NoiseModel("outliers of 20 SD, one commit in eight", _bad_runs(20)),
        NoiseModel("linear drift of 4 SD", lambda n, rng: rng.standard_normal(n) + np.linspace(0, 4, n)),
        NoiseModel("quadratic drift of 6 SD", lambda n, rng: rng.standard_normal(n) + 6 * np.linspace(0, 1, n) ** 2),
        NoiseModel(
            "random walk of 1 SD per commit, with noise",
            lambda n, rng: rng.standard_normal(n) + rng.standard_normal(n).cumsum(),
        ),
        NoiseModel("random walk without noise", lambda n, rng: rng.standard_normal(n).cumsum()),
        NoiseModel(
            "sine of 40 commits, amplitude 2 SD",
            lambda n, rng: rng.standard_normal(n) + 2 * np.sin(2 * np.pi * (np.arange(n) / 40 + rng.random())),
        ),
        NoiseModel(
            "noise that triples halfway", lambda n, rng: rng.standard_normal(n) * (1 + 2 * (np.arange(n) >= n / 2))
        ),
    ]


def hidden() -> list[NoiseModel]:
    """Models that the numbers alone do not tell from changes, and one that our detector handles badly."""
    import numpy as np

    return [
        NoiseModel("unrecorded sessions of 8 commits, offsets of 3 SD", _shared(eights, 3)),
        NoiseModel("unrecorded sessions of 1 to 12 commits, offsets of 3 SD", _shared(uneven, 3)),
        NoiseModel(
            "two states 4 SD apart, switching at one commit in eight",
            lambda n, rng: rng.standard_normal(n) + 4 * ((rng.random(n) < 1 / 8).cumsum() % 2),
        ),
        NoiseModel(
            "7 commits with five times the noise",
            lambda n, rng: rng.standard_normal(n) * (1 + 4 * (abs(np.arange(n) - rng.integers(n)) < 4)),
        ),
    ]


def eights(count: int) -> list[int]:
    """Sessions of 8 commits."""
    return [at // 8 for at in range(count)]


def uneven(count: int) -> list[int]:
    """Sessions of 1 to 12 commits."""
    return [session for session, length in enumerate(LENGTHS) for _ in range(length)][:count]


def _shared(sessions: Callable[[int], list[int]], size: float) -> Draw:
    def draw(count: int, rng: Any) -> "Array":
        offsets = size * rng.standard_normal(count)
        return rng.standard_normal(count) + offsets[sessions(count)]

    return draw


def _autoregressive(memory: float) -> Draw:
    def draw(count: int, rng: Any) -> "Array":
        from scipy.signal import lfilter

        new = rng.standard_normal(count)
        new[1:] *= (1 - memory**2) ** 0.5
        return lfilter([1], [1, -memory], new)

    return draw


def _bad_runs(size: float) -> Draw:
    return lambda count, rng: rng.standard_normal(count) + size * (rng.random(count) < 1 / 8)
