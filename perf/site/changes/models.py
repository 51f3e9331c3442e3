"""Histories without a change, drawn by chance: what commits scatter by, in units of the noise of one.

`flat` holds each way to scatter with its words. `hidden` are those that hold levels as changes do: no finder that sees
only the numbers can tell them from changes, and the finder's rate of them is shown for what it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

Draw = Callable[[int, Any], "Array"]
"""So many values with numpy's generator."""

LENGTHS = (3, 8, 1, 12, 5, 11)
"""Commits of irregular sessions."""


@dataclass(frozen=True)
class Model:
    """One way to scatter."""

    words: str
    draw: Draw
    sessions: Callable[[int], list[int]] | None = None
    """Of so many commits, where the records know; None where they do not."""


def flat() -> list[Model]:
    """What must show a change in at most 5 of 100 histories."""
    import numpy as np

    return [
        Model("normal noise", lambda n, rng: rng.standard_normal(n)),
        Model(
            "noise with the tails of Student's t, 5 degrees of freedom",
            lambda n, rng: rng.standard_t(5, n) / np.sqrt(5 / 3),
        ),
        Model("tails of t, 3 degrees", lambda n, rng: rng.standard_t(3, n) / np.sqrt(3)),
        Model("exponential noise", lambda n, rng: rng.exponential(size=n)),
        Model("sessions of 8, offset of 1 noise", _shared(eights, 1), eights),
        Model("sessions of 8, offset of 3 noises", _shared(eights, 3), eights),
        Model("sessions of 1 to 12, offset of 3 noises", _shared(uneven, 3), uneven),
        Model("sessions of 8 that nobody knows, 1 noise", _shared(eights, 1)),
        Model("AR(1) of 0.5", _autoregressive(0.5)),
        Model("AR(1) of 0.8", _autoregressive(0.8)),
        Model("AR(1) of 0.95", _autoregressive(0.95)),
        Model("one commit in eight 2.5 noises higher", _bad_runs(2.5)),
        Model("one commit in eight 20 noises higher", _bad_runs(20)),
        Model("a drift of 4 noises", lambda n, rng: rng.standard_normal(n) + np.linspace(0, 4, n)),
        Model("a bent drift of 6 noises", lambda n, rng: rng.standard_normal(n) + 6 * np.linspace(0, 1, n) ** 2),
        Model(
            "a random walk of 1 noise a commit", lambda n, rng: rng.standard_normal(n) + rng.standard_normal(n).cumsum()
        ),
        Model("a random walk and no noise", lambda n, rng: rng.standard_normal(n).cumsum()),
        Model(
            "a wave of 40 commits, 2 noises high",
            lambda n, rng: rng.standard_normal(n) + 2 * np.sin(2 * np.pi * (np.arange(n) / 40 + rng.random())),
        ),
        Model("noise that triples half way", lambda n, rng: rng.standard_normal(n) * (1 + 2 * (np.arange(n) >= n / 2))),
    ]


def hidden() -> list[Model]:
    """What no finder could know from the numbers alone, and one that ours does badly."""
    import numpy as np

    return [
        Model("sessions of 8 that nobody knows, 3 noises", _shared(eights, 3)),
        Model("sessions of 1 to 12 that nobody knows, 3 noises", _shared(uneven, 3)),
        Model(
            "two states 4 noises apart, one commit in eight switches",
            lambda n, rng: rng.standard_normal(n) + 4 * ((rng.random(n) < 1 / 8).cumsum() % 2),
        ),
        Model(
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
