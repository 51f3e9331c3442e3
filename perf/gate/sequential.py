"""What others would have said of the same machine: asv's comparison, and a t-test at 5 %.

They see the samples of two processes, one after the other, so they take for a change of the code what the process and
the hour did: identical code moves by 2 to 6 % between two processes, and by 34 % where the host is the limit.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from perf.gate.rate import Rate
from perf.gate.simulation import ANOTHER_DAY, ROWS, Bools, chunks
from perf.gate.statistics import Floats

SAMPLES = 60  # of a process


@dataclass(frozen=True)
class OneArm:
    """What processes of one commit, one after another, read: medians and interquartile ranges, [kind, process]."""

    kinds: tuple[str, ...]
    median_s: Floats
    iqr_s: Floats

    @staticmethod
    def recorded() -> "OneArm":
        """Eight cases, 14 processes each."""
        one = json.loads(ANOTHER_DAY.read_text())["one_arm"]
        return OneArm(
            tuple(one),
            np.array([case["median_s"] for case in one.values()]),
            np.array([case["iqr_s"] for case in one.values()]),
        )

    def without(self, word: str) -> "OneArm":
        """All kinds but those whose name holds this."""
        kept = [word not in kind for kind in self.kinds]
        return OneArm(tuple(kind for kind in self.kinds if word not in kind), self.median_s[kept], self.iqr_s[kept])

    def draw(self, reports: int, rows: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Log samples of two different processes, [reports, rows, samples]: normal around a recorded median."""
        kinds, processes = self.median_s.shape
        kind = np.arange(rows) % kinds
        base = rng.integers(processes, size=(reports, rows))
        head = (base + rng.integers(1, processes, size=base.shape)) % processes
        arms = []
        for process in (base, head):
            median = self.median_s[kind, process]
            sd = self.iqr_s[kind, process] / median / 1.349
            arms.append(np.log(median)[..., None] + sd[..., None] * rng.normal(size=(*median.shape, SAMPLES)))
        return arms[0], arms[1]


def asv_compare(base: Floats, head: Floats, factor: float = 1.1) -> Bools:
    """`asv compare` of two commits with their samples: medians apart by the factor, and Mann-Whitney's p < 0.002."""
    apart = np.median(head, axis=-1) - np.median(base, axis=-1) > np.log(factor)
    if apart.any():
        apart[apart] = stats.mannwhitneyu(base[apart], head[apart], axis=-1, method="asymptotic").pvalue < 0.002
    return apart


def asv_compare_at_one_percent(base: Floats, head: Floats) -> Bools:
    """`asv compare --factor 1.01`, for who would find 2 %."""
    return asv_compare(base, head, factor=1.01)


def t_test(base: Floats, head: Floats) -> Bools:
    """Slower by Student's t-test at 5 %, two-sided."""
    return _t_test(base, head, 0.0)


def t_test_beyond_one_percent(base: Floats, head: Floats) -> Bools:
    """The same, with what we call negligible: slower by more than 1 %."""
    return _t_test(base, head, np.log(1.01))


def _t_test(base: Floats, head: Floats, floor: float) -> Bools:
    error = np.sqrt((base.var(-1, ddof=1) + head.var(-1, ddof=1)) / base.shape[-1])
    return (head.mean(-1) - base.mean(-1) - floor) / error > stats.t.isf(0.025, 2 * base.shape[-1] - 2)


def one_after_another(
    noise: OneArm, reports: int, rule: Callable[[Floats, Floats], Bools], rows: int = ROWS, seed: int = 0
) -> Rate:
    """Reports of identical code in which `rule` calls a row slower, a process of each commit after the other."""
    drawn = (noise.draw(count, rows, rng) for count, rng in chunks(reports, seed))
    return Rate(sum(int(rule(base, head).any(-1).sum()) for base, head in drawn), reports)


def found_one_after_another(
    noise: OneArm, reports: int, slow_down: float, rule: Callable[[Floats, Floats], Bools], seed: int = 0
) -> dict[str, Rate]:
    """Of each kind, how often `rule` calls a row slower that is, by this share."""
    base, head = noise.draw(reports, len(noise.kinds), np.random.default_rng(seed))
    hits = rule(base, head + np.log1p(slow_down)).sum(0)
    return {name: Rate(int(hits[i]), reports) for i, name in enumerate(noise.kinds)}
