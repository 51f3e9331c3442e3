"""Disturb drawn noise before it is judged: process effects, outliers, drift, correlated visits, faster neighbours."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perf.gate.variance import Floats


@dataclass(frozen=True)
class Structure:
    """A structure of the noise that the gate must withstand."""

    name: str
    disturb: Callable[[Floats, Floats, np.random.Generator], Floats]
    """Function of changes [reports, rows, processes, visits], the visits' standard deviation [rows] and a generator."""

    faster: int = 0
    """Number of rows that are 5 % faster; all others are slower by exactly their floor, which is not yet a change."""

    exact: bool = False
    """Whether the true change is exactly 0, so that the floor may be 0, which tests the statistics harder. Process
    means are then drawn from a normal distribution with the recorded scatter, since twelve draws from three recorded
    processes would agree too often."""

    known: float = 0.0
    """Log ratio by which the A/A runs on record moved as well, so that the margins include it."""


def _as_recorded(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    return changes


def _symmetric(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    return changes * rng.choice([-1.0, 1.0], changes.shape[:3])[..., None]


def _process_effects(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    unlike = rng.random(changes.shape[:2]) < 0.05
    effects = rng.normal(size=changes.shape[:3]) * 2 * sd[:, None] * unlike[..., None]
    return _symmetric(changes, sd, rng) + effects[..., None]


def _heavy_tails(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    return rng.standard_t(3, changes.shape) / 3**0.5 * sd[:, None, None]


def _outliers(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    changes = _symmetric(changes, sd, rng)
    visits = changes.reshape(*changes.shape[:2], -1)
    which = rng.integers(visits.shape[-1], size=(*visits.shape[:2], 1))
    jump = 10 * sd[:, None] * rng.choice([-1.0, 1.0], which.shape)
    np.put_along_axis(visits, which, np.take_along_axis(visits, which, -1) + jump, -1)
    return visits.reshape(changes.shape)


def _order(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    return changes + 0.003


def _coins(rows: int) -> Callable[[Floats, Floats, np.random.Generator], Floats]:
    """Make every process of so many rows 3 % faster or slower, like an allocation or a compiled module."""

    def disturb(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
        changes = _symmetric(changes, sd, rng)
        changes[:, :rows] += 0.03 * rng.choice([-1.0, 1.0], changes[:, :rows].shape[:3])[..., None]
        return changes

    return disturb


def _one_process_in_eight(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    return _symmetric(changes, sd, rng) + 0.05 * (rng.random(changes.shape[:3]) < 1 / 8)[..., None]


def _autocorrelated(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    """Correlate neighbouring visits of a process by 0.8."""
    noise = rng.normal(size=changes.shape)
    for visit in range(1, changes.shape[-1]):
        noise[..., visit] = 0.8 * noise[..., visit - 1] + 0.6 * noise[..., visit]
    return noise * sd[:, None, None]


def _drifting(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    """Drift by four standard deviations of a visit over a report, up or down."""
    drift = np.linspace(-2, 2, changes.shape[2] * changes.shape[3]).reshape(changes.shape[2:])
    changes = _symmetric(changes, sd, rng)
    sign = rng.choice([-1, 1], changes.shape[:2])[..., None, None]
    return changes + sign * drift * sd[:, None, None]


def _skewed(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    return (rng.exponential(size=changes.shape) - 1) * sd[:, None, None]


def _two_modes(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    """Run each visit at one of two speeds 3 % apart, with equal probability."""
    return _symmetric(changes, sd, rng) + 0.015 * rng.choice([-1.0, 1.0], changes.shape)


STRUCTURES = (
    Structure("as recorded", _as_recorded),
    Structure("arms exchanged at random", _symmetric, exact=True),
    Structure("5 % of rows: process effect of 2 visits' SD", _process_effects, exact=True),
    Structure("heavy tails: t with 3 degrees of freedom", _heavy_tails, exact=True),
    Structure("one visit a row 10 SD off", _outliers, exact=True),
    Structure("order: head 0.3 % slower, here and on file", _order, known=0.003),
    Structure("one row: a process is 3 % faster or slower", _coins(1)),
    Structure("ten rows: a process is 3 % faster or slower", _coins(10)),
    Structure("one process in eight 5 % slower", _one_process_in_eight),
    Structure("visits of two speeds 3 % apart", _two_modes, exact=True),
    Structure("skewed: exponential", _skewed, exact=True),
    Structure("neighbouring visits correlated by 0.8", _autocorrelated, exact=True),
    Structure("drift by four visits' SD", _drifting, exact=True),
    Structure("50 rows 5 % faster, the others at the floor", _symmetric, faster=50),
    Structure("150 rows 5 % faster, the others at the floor", _symmetric, faster=150),
)
