"""Simulate the gate's error rates: draw thousands of reports from recorded noise and apply the gate's own statistics.

Each row is drawn from one recorded case: processes from the recorded ones, visits as a run of consecutive visits of
such a process. Offsets, process effects, drift and outliers are therefore those that were recorded. The rows of a
report are then judged as the gate judges them: after each look, sampling continues in the open rows alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from perf.gate import inference, variance
from perf.gate.disturbances import STRUCTURES, Structure
from perf.gate.measuring import VISITS
from perf.gate.rate import Rate
from perf.gate.recorded_noise import Noise
from perf.gate.variance import Bools, Floats
from perf.gate.verdicts import LOOKS

ROWS = 200
"""Rows of a report of identical code."""

PR_ROWS = 49
"""Rows of a report with one slower row: as many as `--set pr` judges, which the default budget is meant for."""

CHUNK = 50  # reports in memory at a time


class SimulatedWords(NamedTuple):
    """Words of the rows of reports, [reports, rows], and the number of processes each row took."""

    slower: Bools
    faster: Bools
    same: Bools
    processes: Floats


class Rule(Protocol):
    """A rule that decides the rows of reports."""

    def __call__(self, changes: Floats, clocks: npt.NDArray[Any], floors: Floats) -> SimulatedWords:
        """Decide changes [reports, rows, processes, visits]."""


def gate(changes: Floats, clocks: npt.NDArray[Any], floors: Floats) -> SimulatedWords:
    """Apply the gate's rule: SAME ends a row's measuring; before the last look, so does not being a suspect."""
    shape = changes.shape[:2]
    processes = np.zeros(shape)
    slower, faster, same = np.zeros((3, *shape), bool)
    is_open = np.ones(shape, bool)
    for look in LOOKS:
        processes[is_open] = look
        reports = np.nonzero(is_open.any(-1))[0]
        if not len(reports):
            break
        taken = np.arange(look) < processes[reports, :, None]
        rows = variance.summarize(np.where(taken[..., None], changes[reports, :, :look], np.nan))
        decision = inference.decide(inference.estimate(rows, clocks), floors)
        was_open = is_open[reports]
        same[reports] |= decision.same & was_open
        goes_on = was_open & ~decision.same
        if look == LOOKS[-1]:
            slower[reports] = decision.slower & goes_on
            faster[reports] = decision.faster & goes_on
        if look == LOOKS[-2]:
            goes_on &= decision.suspect
        is_open[reports] = goes_on
    return SimulatedWords(slower, faster, same, processes)


def t_test_per_row(changes: Floats, clocks: npt.NDArray[Any], floors: Floats) -> SimulatedWords:
    """Apply a naive rule: a t-test per row at 5 % on all visits, whichever process they come from, beyond the floor."""
    visits = changes.reshape(*changes.shape[:2], -1)
    slower = stats.ttest_1samp(visits, floors[..., None], axis=-1, alternative="greater").pvalue < 0.025
    faster = stats.ttest_1samp(visits, -floors[..., None], axis=-1, alternative="less").pvalue < 0.025
    return SimulatedWords(slower, faster, ~(slower | faster), np.full(slower.shape, float(changes.shape[2])))


def draw(
    noise: Noise,
    reports: int,
    rng: np.random.Generator,
    kind: npt.NDArray[np.intp],
    visits: int = VISITS,
    *,
    normal: bool = False,
) -> Floats:
    """Draw changes [reports, rows, processes, visits] of identical code for rows of the given kinds.

    `normal` draws process effects from a normal distribution as wide as the recorded effects.
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
class FalseAlarms:
    """Error rates in reports of identical code."""

    slower: Rate
    """Reports with a row falsely reported as SLOWER."""

    faster: Rate
    """Reports with a row falsely reported as FASTER."""

    same: float
    """Share of rows reported as SAME."""

    processes: float
    """Mean number of processes per row."""


def identical_code(
    noise: Noise,
    reports: int,
    structure: Structure = STRUCTURES[0],
    *,
    rule: Rule = gate,
    strict: bool = False,
    visits: int = VISITS,
) -> FalseAlarms:
    """Simulate reports of identical code and count false alarms; `strict` sets all floors to 0."""
    slower, faster, same, processes = 0, 0, [], []
    for count, rng in chunks(reports):
        kind = np.arange(ROWS) % len(noise.kinds)
        drawn = draw(noise, count, rng, kind, visits, normal=structure.exact or structure.faster > 0)
        changes = structure.disturb(drawn, noise.visit_sd[kind], rng)
        floors = noise.floors(structure.known)[kind] * (not strict)
        if structure.faster:
            changes += floors[:, None, None]
            changes[:, : structure.faster] -= 0.05 + 2 * floors[: structure.faster, None, None]
        words = rule(changes, noise.clocks[kind], floors)
        slower += int(words.slower.any(-1).sum())
        faster += int(words.faster[:, structure.faster :].any(-1).sum())
        same.append(words.same.mean())
        processes.append(words.processes.mean())
    return FalseAlarms(Rate(slower, reports), Rate(faster, reports), float(np.mean(same)), float(np.mean(processes)))


@dataclass(frozen=True)
class Detection:
    """Detection rates in reports with one slower row."""

    rates: dict[str, Rate]
    """Rate at which the slower row was reported as SLOWER, by kind."""

    processes: float
    """Mean number of processes per row."""


def detection(noise: Noise, reports: int, slow_down: float, *, visits: int = VISITS) -> Detection:
    """Simulate reports of a pull request with one row slower by the share `slow_down`, and count detections."""
    kinds = len(noise.kinds)
    hits, tried, processes = np.zeros(kinds, int), np.zeros(kinds, int), 0.0
    for count, rng in chunks(reports):
        chosen = rng.permutation(kinds)[:PR_ROWS] if kinds > PR_ROWS else np.arange(kinds)
        kind = chosen[np.arange(PR_ROWS) % len(chosen)]
        changes = draw(noise, count, rng, kind, visits)
        slowed = np.arange(count) % len(chosen)  # the first row of its kind
        changes[np.arange(count), slowed] += np.log1p(slow_down)
        words = gate(changes, noise.clocks[kind], noise.floors()[kind])
        np.add.at(hits, kind[slowed], words.slower[np.arange(count), slowed])
        np.add.at(tried, kind[slowed], 1)
        processes += words.processes.mean(-1).sum()
    return Detection(
        {name: Rate(int(hits[i]), int(tried[i])) for i, name in enumerate(noise.kinds)}, processes / reports
    )


def min_detectable(noise: Noise, *, visits: int = VISITS) -> Floats:
    """Return each kind's minimum detectable slow-down, as a share, after the last look; median of 50 reports."""
    ((count, rng),) = chunks(CHUNK)
    kind = np.arange(ROWS) % len(noise.kinds)
    changes = draw(noise, count, rng, kind, visits)
    rows = inference.estimate(variance.summarize(changes), noise.clocks[kind])
    detectable = np.expm1(inference.min_detectable(rows, noise.floors()[kind]))
    return np.array([np.median(detectable[:, kind == i]) for i in range(len(noise.kinds))])


def chunks(reports: int) -> Iterator[tuple[int, np.random.Generator]]:
    """Split reports into chunks, each with a generator of its own."""
    for number, start in enumerate(range(0, reports, CHUNK)):
        yield min(CHUNK, reports - start), np.random.default_rng([0, number])
