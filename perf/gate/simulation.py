"""How often is the gate wrong? Thousands of reports drawn from recorded noise, judged by its own statistics.

A row is drawn from one recorded case: its processes from the recorded ones, its visits as a run of one such process's
visits in the order taken, so that offsets, effects of a process, drift and outliers come along as they were. Rows of a
report are then judged as the gate judges them: at each look, sampling goes on in the open rows alone.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from perf.gate import statistics
from perf.gate.rate import Rate
from perf.gate.statistics import LOOKS, Floats
from perf.selection import asv_classes

TUNED_ON = Path(__file__).parents[1] / "studies" / "results" / "nvidia-h200" / "noise.json"
ANOTHER_DAY = Path(__file__).with_name("recorded_noise.json")

OF_CLASS = {"matmul": "controls.Controls", "attention forward": "attention.FlashAttention"}
"""Whose floors rows have that were recorded before there were classes."""

Bools = npt.NDArray[np.bool_]

ROWS = 200
VISITS = 6
"""Of a process at a row."""

CHUNK = 50  # reports held in memory at a time


class Words(NamedTuple):
    """What is said of the rows of reports, [reports, rows], and the processes that it took."""

    slower: Bools
    faster: Bools
    same: Bools
    processes: Floats


class Rule(Protocol):
    """What calls rows of reports slower."""

    def __call__(self, changes: Floats, clocks: npt.NDArray[Any], floors: Floats) -> Words:
        """Of changes [reports, rows, processes, visits]."""


@dataclass(frozen=True)
class Noise:
    """What identical code did: log changes of visits, [kind, process, visit]."""

    kinds: tuple[str, ...]
    base_s: Floats
    changes: Floats

    @property
    def clocks(self) -> npt.NDArray[Any]:
        """Host-bound and device-bound rows share nothing."""
        return np.array(["gpu_wall" in kind for kind in self.kinds])

    @property
    def floors(self) -> Floats:
        """As log ratios: those of the classes that the rows are of."""
        deployed = {name: cls.negligible for name, cls, _ in asv_classes() if cls is not None}
        classes = [next((of for start, of in OF_CLASS.items() if kind.startswith(start)), kind) for kind in self.kinds]
        return np.array(
            [
                statistics.floor_of(deployed[of.partition("(")[0]], base_s)
                for of, base_s in zip(classes, self.base_s, strict=True)
            ]
        )

    @property
    def visit_sd(self) -> Floats:
        """Standard deviation within processes, of each kind."""
        return self.changes.std(-1, ddof=1).mean(-1)


def tuned_on() -> Noise:
    """The noise study's crossed design: 10 cases, 4 processes of 18 visits."""
    rows = [row for row in json.loads(TUNED_ON.read_text())["rows"] if row["design"] == "crossed"]
    cases: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        cases.setdefault(row["case"], {}).setdefault(row["process"], []).append(row)
    return Noise(
        kinds=tuple(cases),
        base_s=np.array([np.median([row["a"] for one in case.values() for row in one]) for case in cases.values()]),
        changes=np.array(
            [[[np.log(row["b"] / row["a"]) for row in one] for one in case.values()] for case in cases.values()]
        ),
    )


def another_day() -> Noise:
    """Four cases, 5 processes of 18 visits, recorded on another day, by another script."""
    paired = json.loads(ANOTHER_DAY.read_text())["paired"]
    return Noise(
        kinds=tuple(paired),
        base_s=np.array([one["median_s"] for one in paired.values()]),
        changes=np.array([one["changes"] for one in paired.values()]),
    )


def gate(changes: Floats, clocks: npt.NDArray[Any], floors: Floats, looks: Sequence[int] = LOOKS) -> Words:
    """The gate's own rule: SAME ends a row's measuring; before the last look, so does being no suspect."""
    shape = changes.shape[:2]
    processes = np.zeros(shape)
    slower, faster, same = np.zeros((3, *shape), bool)
    is_open = np.ones(shape, bool)
    for look in looks:
        processes[is_open] = look
        going_on = np.nonzero(is_open.any(-1))[0]  # reports
        if not len(going_on):
            break
        taken = np.arange(look) < processes[going_on, :, None]
        rows = statistics.summarize(np.where(taken[..., None], changes[going_on, :, :look], np.nan))
        said = statistics.decide(statistics.estimate(rows, clocks), floors, len(looks))
        was_open = is_open[going_on]
        same[going_on] |= said.same & was_open
        if look == looks[-1]:
            slower[going_on] = said.slower & was_open & ~said.same
            faster[going_on] = said.faster & was_open & ~said.same
        goes_on = was_open & ~said.same
        if len(looks) > 1 and look == looks[-2]:
            goes_on &= said.suspect
        is_open[going_on] = goes_on
    return Words(slower, faster, same, processes)


def every_row_for_itself(changes: Floats, clocks: npt.NDArray[Any], floors: Floats) -> Words:
    """The naive rule: a t-test of a row's visits at 5 %, whichever process they come from, beyond the floor."""
    visits = changes.reshape(*changes.shape[:2], -1)
    error, limit = stats.sem(visits, axis=-1), stats.t.isf(0.025, visits.shape[-1] - 1)
    slower, faster = ((sign * visits.mean(-1) - floors) / error > limit for sign in (1, -1))
    return Words(slower, faster, ~(slower | faster), np.full(slower.shape, float(changes.shape[2])))


@dataclass(frozen=True)
class Structure:
    """What is done to drawn rows before they are judged."""

    name: str
    disturb: Callable[[Floats, Floats, np.random.Generator], Floats]
    """Changes [reports, rows, processes, visits], a visit's standard deviation [rows]."""

    faster: int = 0
    """So many rows are 5 % faster, and all others slower by their floor exactly, which is no change yet."""

    exact: bool = False
    """Nothing differs, to the last digit, so that the floor may be 0: the harder test of the statistics."""


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
    """Of so many rows every process is 3 % faster or slower, as an allocation or a compiled module may have it."""

    def disturb(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
        changes = _symmetric(changes, sd, rng)
        changes[:, :rows] += 0.03 * rng.choice([-1.0, 1.0], changes[:, :rows].shape[:3])[..., None]
        return changes

    return disturb


def _one_process_in_eight(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    return _symmetric(changes, sd, rng) + 0.05 * (rng.random(changes.shape[:3]) < 1 / 8)[..., None]


def _autocorrelated(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    """Neighbouring visits of a process are alike: correlation 0.8."""
    noise = rng.normal(size=changes.shape)
    for visit in range(1, changes.shape[-1]):
        noise[..., visit] = 0.8 * noise[..., visit - 1] + 0.6 * noise[..., visit]
    return noise * sd[:, None, None]


def _drifting(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    """Over a report by four deviations of a visit, up or down."""
    way = np.linspace(-2, 2, changes.shape[2] * changes.shape[3]).reshape(changes.shape[2:])
    return (
        _symmetric(changes, sd, rng) + rng.choice([-1, 1], changes.shape[:2])[..., None, None] * way * sd[:, None, None]
    )


def _skewed(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    return (rng.exponential(size=changes.shape) - 1) * sd[:, None, None]


def _two_modes(changes: Floats, sd: Floats, rng: np.random.Generator) -> Floats:
    """Every visit is of one of two speeds 3 % apart, either as often."""
    return _symmetric(changes, sd, rng) + 0.015 * rng.choice([-1.0, 1.0], changes.shape)


STRUCTURES = (
    Structure("as recorded", _as_recorded),
    Structure("arms exchanged at random", _symmetric, exact=True),
    Structure("5 % of rows: process effect of 2 visits' SD", _process_effects, exact=True),
    Structure("heavy tails: t with 3 degrees of freedom", _heavy_tails, exact=True),
    Structure("one visit a row 10 SD off", _outliers, exact=True),
    Structure("order: head 0.3 % slower in every visit", _order),
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


def draw(noise: Noise, reports: int, rng: np.random.Generator, rows: int = ROWS, visits: int = VISITS) -> Floats:
    """Changes [reports, rows, processes, visits] of identical code; row i is of kind i modulo their number."""
    kind = (np.arange(rows) % len(noise.kinds))[:, None, None]
    shape = (reports, rows, max(LOOKS), 1)
    process = rng.integers(noise.changes.shape[1], size=shape)
    start = rng.integers(noise.changes.shape[2] - visits + 1, size=shape)
    return noise.changes[kind, process, start + np.arange(visits)]


@dataclass(frozen=True)
class Simulated:
    """Reports of identical code."""

    false_alarms: Rate
    """Reports with a row called slower that is not."""

    false_gains: Rate
    """Likewise faster."""

    same: float
    """Share of rows called the same."""

    processes: float
    """That a row took, on average."""


def identical_code(
    noise: Noise,
    reports: int,
    structure: Structure = STRUCTURES[0],
    *,
    rule: Rule = gate,
    strict: bool = False,
    rows: int = ROWS,
    visits: int = VISITS,
    seed: int = 0,
) -> Simulated:
    """How often a report without a change has a row called slower; `strict`: without floors."""
    alarms, gains, same, processes = 0, 0, [], []
    for count, rng in chunks(reports, seed):
        kind = np.arange(rows) % len(noise.kinds)
        changes = structure.disturb(draw(noise, count, rng, rows, visits), noise.visit_sd[kind], rng)
        floors = noise.floors[kind] * (not strict)
        faster = min(structure.faster, rows)
        if structure.faster:
            changes += floors[:, None, None]
            changes[:, :faster] -= 0.05 + 2 * floors[:faster, None, None]
        said = rule(changes, noise.clocks[kind], floors)
        alarms += int(said.slower.any(-1).sum())
        gains += int(said.faster[:, faster:].any(-1).sum())
        same.append(said.same.mean())
        processes.append(said.processes.mean())
    return Simulated(Rate(alarms, reports), Rate(gains, reports), float(np.mean(same)), float(np.mean(processes)))


def found(
    noise: Noise,
    reports: int,
    slow_down: float,
    structure: Structure = STRUCTURES[0],
    *,
    rule: Rule = gate,
    rows: int = ROWS,
    visits: int = VISITS,
    seed: int = 0,
) -> dict[str, Rate]:
    """Of each kind, how often its row is called slower if it is, by this share, and no other row of the report is."""
    kinds = len(noise.kinds)
    hits, tried = np.zeros(kinds, int), np.zeros(kinds, int)
    for count, rng in chunks(reports, seed):
        kind = np.arange(rows) % kinds
        changes = structure.disturb(draw(noise, count, rng, rows, visits), noise.visit_sd[kind], rng)
        slowed = np.arange(count) % kinds  # the first row of its kind
        changes[np.arange(count), slowed] += np.log1p(slow_down)
        slower = rule(changes, noise.clocks[kind], noise.floors[kind]).slower
        np.add.at(hits, slowed, slower[np.arange(count), slowed])
        np.add.at(tried, slowed, 1)
    return {name: Rate(int(hits[i]), int(tried[i])) for i, name in enumerate(noise.kinds)}


def visible(noise: Noise, structure: Structure = STRUCTURES[0], *, visits: int = VISITS, seed: int = 0) -> Floats:
    """The smallest slow-down, as a share, that each kind shows with 95 % after the last look; median of 50 reports."""
    ((count, rng),) = chunks(CHUNK, seed)
    kind = np.arange(ROWS) % len(noise.kinds)
    changes = structure.disturb(draw(noise, count, rng, visits=visits), noise.visit_sd[kind], rng)
    rows = statistics.estimate(statistics.summarize(changes), noise.clocks[kind])
    least = np.expm1(statistics.smallest_visible(rows, noise.floors[kind]))
    return np.array([np.median(least[:, kind == i]) for i in range(len(noise.kinds))])


def chunks(reports: int, seed: int) -> Iterator[tuple[int, np.random.Generator]]:
    """Reports as they are drawn: how many at a time, with a generator of their own."""
    for number, start in enumerate(range(0, reports, CHUNK)):
        yield min(CHUNK, reports - start), np.random.default_rng([seed, number])
