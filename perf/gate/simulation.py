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

from perf.gate import identical, statistics
from perf.gate.evidence import DEVICE_CLOCKS
from perf.gate.rate import Rate
from perf.gate.rows import every_row
from perf.gate.statistics import LOOKS, Floats
from perf.selection import asv_classes

TUNED_ON = Path(__file__).parents[1] / "studies" / "results" / "nvidia-h200" / "noise.json"
ANOTHER_DAY = Path(__file__).with_name("recorded_noise.json")

MACHINE = "nvidia-h200"
"""Whose identical code on file is drawn from."""

OF_CLASS = {"matmul": "controls.Controls", "attention forward": "attention.FlashAttention"}
"""Whose floors rows have that were recorded before there were classes."""

Bools = npt.NDArray[np.bool_]

ROWS = 200
"""Of a report of identical code."""

FEWER_ROWS = 51
"""Of one in which a row is slower: those of `--set pr`, which the default budget is for."""

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
    clocks: npt.NDArray[Any]
    """Of each kind: those that differ share nothing."""

    negligible: Floats
    """What the class of each kind calls so, as a log ratio."""

    moved: Floats
    """How far identical code of the kind moved, at most, likewise; infinite where its margin is the class's."""

    def floors(self, known: float = 0.0) -> Floats:
        """As the gate takes them, as log ratios; where identical code had moved by so much more."""
        return np.minimum(self.negligible, np.log1p(identical.widened(np.expm1(self.moved + known))))

    @property
    def process_sd(self) -> Floats:
        """Standard deviation of process means, of each kind."""
        return self.changes.mean(-1).std(-1, ddof=1)

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
    return _study(
        tuple(cases),
        np.array([np.median([row["a"] for one in case.values() for row in one]) for case in cases.values()]),
        np.array([[[np.log(row["b"] / row["a"]) for row in one] for one in case.values()] for case in cases.values()]),
    )


def another_day() -> Noise:
    """Four cases, 5 processes of 18 visits, recorded on another day, by another script."""
    paired = json.loads(ANOTHER_DAY.read_text())["paired"]
    return _study(
        tuple(paired),
        np.array([one["median_s"] for one in paired.values()]),
        np.array([one["changes"] for one in paired.values()]),
    )


def _study(kinds: tuple[str, ...], base_s: Floats, changes: Floats) -> Noise:
    """Rows recorded before there were classes; their margins come from the first processes alone."""
    deployed = {name: cls.negligible for name, cls, _ in asv_classes() if cls is not None}
    classes = [next((of for start, of in OF_CLASS.items() if kind.startswith(start)), kind) for kind in kinds]
    host_bound = np.array(["gpu_wall" in kind for kind in kinds])
    return Noise(
        kinds,
        base_s,
        changes,
        host_bound,
        np.array(
            [statistics.floor_of(deployed[of.partition("(")[0]], s) for of, s in zip(classes, base_s, strict=True)]
        ),
        np.array(
            [
                identical.furthest(one[: identical.FEWEST].mean(-1).tolist())
                if s >= identical.SHORTEST_S and not of_host
                else np.inf
                for one, s, of_host in zip(changes, base_s, host_bound, strict=True)
            ]
        ),
    )


def on_file(machine: str = MACHINE, records: Path | None = None) -> Noise | None:
    """All identical code on file: of each row its newest sitting, with the margin that older ones gave it.

    None where fewer rows are on file than share a prior.
    """
    rows = {row.case.key: row for row in every_row()}
    recorded: dict[str, tuple[float, Floats, float]] = {}
    sittings = identical.sittings(machine, records)
    for number, one in enumerate(sittings):
        moved = identical.moved(sittings[:number])
        for key in one.base_s.keys() & rows.keys():
            processes = [np.resize(visits, VISITS) for visits in one.processes(key) if len(visits) > VISITS // 2]
            if len(processes) >= identical.FEWEST:
                recorded[key] = one.base_s[key], np.array(processes), moved.get(key, np.inf)
    if len(recorded) < statistics.FEWEST_FOR_PRIOR:
        return None
    kinds = tuple(sorted(recorded))
    base_s = np.array([recorded[key][0] for key in kinds])
    most = max(len(recorded[key][1]) for key in kinds)
    clocks = np.array([rows[key].case.clock for key in kinds])
    has_margin = np.isin(clocks, DEVICE_CLOCKS) & (base_s >= identical.SHORTEST_S)
    return Noise(
        kinds,
        base_s,
        np.array([np.resize(recorded[key][1], (most, VISITS)) for key in kinds]),
        clocks,
        np.array([statistics.floor_of(rows[key].negligible, s) for key, s in zip(kinds, base_s, strict=True)]),
        np.where(has_margin, [recorded[key][2] for key in kinds], np.inf),
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
    """Nothing differs, to the last digit, so that the floor may be 0: the harder test of the statistics. Processes
    then scatter about 0 as the recorded ones do about their mean, normally: twelve draws from three would be alike too
    often."""

    known: float = 0.0
    """What identical code on file has moved by, too, as a log ratio: the margins know of it."""


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


def draw(
    noise: Noise,
    reports: int,
    rng: np.random.Generator,
    kind: npt.NDArray[np.intp],
    visits: int = VISITS,
    *,
    normal: bool = False,
) -> Floats:
    """Changes [reports, rows, processes, visits] of identical code, of rows of these kinds.

    `normal`: what a process does is not one of the recorded effects, but drawn from as wide a normal distribution.
    """
    shape = (reports, len(kind), max(LOOKS), 1)
    process = rng.integers(noise.changes.shape[1], size=shape)
    start = rng.integers(noise.changes.shape[2] - visits + 1, size=shape)
    drawn = noise.changes[kind[:, None, None], process, start + np.arange(visits)]
    if not normal:
        return drawn
    recorded = noise.changes.mean(-1)[kind[:, None, None], process]
    return drawn - recorded + rng.normal(size=shape) * noise.process_sd[kind][:, None, None]


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
        drawn = draw(noise, count, rng, kind, visits, normal=structure.exact or structure.faster > 0)
        changes = structure.disturb(drawn, noise.visit_sd[kind], rng)
        floors = noise.floors(structure.known)[kind] * (not strict)
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


@dataclass(frozen=True)
class Found:
    """Reports in which one row is slower."""

    rates: dict[str, Rate]
    """By kind: how often it was called so."""

    processes: float
    """That a row took, on average."""


def found(
    noise: Noise,
    reports: int,
    slow_down: float,
    structure: Structure = STRUCTURES[0],
    *,
    rule: Rule = gate,
    rows: int = FEWER_ROWS,
    visits: int = VISITS,
    seed: int = 0,
) -> Found:
    """How often a row is called slower if it is, by this share, and no other row of the report is."""
    kinds = len(noise.kinds)
    hits, tried, processes = np.zeros(kinds, int), np.zeros(kinds, int), 0.0
    for count, rng in chunks(reports, seed):
        some = rng.permutation(kinds)[:rows] if kinds > rows else np.arange(kinds)
        kind = some[np.arange(rows) % len(some)]
        changes = structure.disturb(draw(noise, count, rng, kind, visits), noise.visit_sd[kind], rng)
        slowed = np.arange(count) % len(some)  # the first row of its kind
        changes[np.arange(count), slowed] += np.log1p(slow_down)
        said = rule(changes, noise.clocks[kind], noise.floors()[kind])
        np.add.at(hits, kind[slowed], said.slower[np.arange(count), slowed])
        np.add.at(tried, kind[slowed], 1)
        processes += said.processes.mean(-1).sum()
    return Found({name: Rate(int(hits[i]), int(tried[i])) for i, name in enumerate(noise.kinds)}, processes / reports)


def visible(noise: Noise, structure: Structure = STRUCTURES[0], *, visits: int = VISITS, seed: int = 0) -> Floats:
    """The smallest slow-down, as a share, that each kind shows with 95 % after the last look; median of 50 reports."""
    ((count, rng),) = chunks(CHUNK, seed)
    kind = np.arange(ROWS) % len(noise.kinds)
    changes = structure.disturb(draw(noise, count, rng, kind, visits), noise.visit_sd[kind], rng)
    rows = statistics.estimate(statistics.summarize(changes), noise.clocks[kind])
    least = np.expm1(statistics.smallest_visible(rows, noise.floors()[kind]))
    return np.array([np.median(least[:, kind == i]) for i in range(len(noise.kinds))])


def chunks(reports: int, seed: int) -> Iterator[tuple[int, np.random.Generator]]:
    """Reports as they are drawn: how many at a time, with a generator of their own."""
    for number, start in enumerate(range(0, reports, CHUNK)):
        yield min(CHUNK, reports - start), np.random.default_rng([seed, number])
