"""Rules of other tools on the same machine: `asv compare`, and a t-test at 5 %.

They compare two processes that ran one after the other, so they mistake effects of the process and of the time of day
for a change of the code: identical code moves by 2 to 6 % between two processes, and by 34 % if it is host-bound.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from perf.gate.rate import Rate
from perf.gate.recorded_noise import ANOTHER_DAY
from perf.gate.simulation import ROWS, chunks
from perf.gate.variance import Bools, Floats

SAMPLES = 60  # per process

Rule = Callable[[Floats, Floats], Bools]
"""Maps samples of two commits to the rows that it calls slower."""


@dataclass(frozen=True)
class OneArm:
    """Medians and interquartile ranges of consecutive processes of one commit, [kind, process]."""

    kinds: tuple[str, ...]
    median_s: Floats
    iqr_s: Floats

    @staticmethod
    def recorded() -> "OneArm":
        """Read eight cases of 14 processes each."""
        cases = json.loads(ANOTHER_DAY.read_text())["one_arm"]
        return OneArm(
            tuple(cases),
            np.array([case["median_s"] for case in cases.values()]),
            np.array([case["iqr_s"] for case in cases.values()]),
        )

    def without(self, word: str) -> "OneArm":
        """Drop the kinds whose name contains `word`."""
        kept = [word not in kind for kind in self.kinds]
        return OneArm(tuple(kind for kind in self.kinds if word not in kind), self.median_s[kept], self.iqr_s[kept])

    def draw(self, reports: int, rows: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draw log samples of two different processes, [reports, rows, samples], normal around a recorded median."""
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
    """Apply `asv compare`: medians differ by more than the factor, and the Mann-Whitney test gives p < 0.002."""
    apart = np.median(head, axis=-1) - np.median(base, axis=-1) > np.log(factor)
    if apart.any():
        apart[apart] = stats.mannwhitneyu(base[apart], head[apart], axis=-1, method="asymptotic").pvalue < 0.002
    return apart


def t_test(base: Floats, head: Floats, floor: float = 0.0) -> Bools:
    """Apply Student's two-sided t-test at 5 % to a slow-down of more than `floor`, a log ratio."""
    return stats.ttest_ind(head - floor, base, axis=-1, alternative="greater").pvalue < 0.025


def one_after_another(noise: OneArm, reports: int, rule: Rule) -> Rate:
    """Simulate reports of identical code, one process per commit; count those with a slow-down by `rule`."""
    drawn = (noise.draw(count, ROWS, rng) for count, rng in chunks(reports))
    return Rate(sum(int(rule(base, head).any(-1).sum()) for base, head in drawn), reports)


def detected_one_after_another(noise: OneArm, reports: int, slow_down: float, rule: Rule) -> dict[str, Rate]:
    """Return the rate at which `rule` detects a slow-down by this share, by kind."""
    base, head = noise.draw(reports, len(noise.kinds), np.random.default_rng(0))
    hits = rule(base, head + np.log1p(slow_down)).sum(0)
    return {name: Rate(int(hits[i]), reports) for i, name in enumerate(noise.kinds)}
