"""Decide from log changes which rows are slower, faster or the same; pure functions, no I/O.

A visit samples a case with both arms alternating. Its change, log(head / base), is modelled as

    the row's change + an effect of the process + noise of the visit

so that a mean over P processes of V visits each has the variance (noise^2 / V + effect^2) / P. A row has too few
processes to estimate its own effect, so rho = mean square between processes / mean square within them borrows strength
from the report's other rows of the same clock:

1. A row's mean square combines its own and that of the prior (`perf.gate.prior`), weighted by degrees of freedom.
2. A row may be unlike the others, and three processes that happen to agree hide it. So 5 % of the prior is
   uninformative: with the posterior probability that the row's rho leaves for it, the row is judged on its process
   means alone, by Student's t with P - 1 degrees of freedom (a robust mixture prior, Schmidli et al. 2014, Robust
   meta-analytic-predictive priors; the same danger is met by Phipson et al. 2016, Robust hyperparameter estimation).

A row is looked at several times and is measured on only while it is undecided. SAME may be reported at each of the K
looks, so its interval has the level 1 - 0.05 / K (Bonferroni over looks; Armitage, McPherson and Rowe 1969, Repeated
significance tests, show the error without it). SLOWER and FASTER are reported at the last look alone: stopping earlier
can only remove them, so the p-value of that look needs no correction. At that look, all processes have to agree. A
process effect of 3 % with random sign (an allocation, a compiled module) looks like a change of the code in one of four
sets of three processes, and in one of 2048 sets of twelve.

Over all rows of a report, the false discovery rate is `FALSE_DISCOVERIES` among the SLOWER and separately among the
FASTER (Benjamini and Hochberg 1995): in a single family, rows that are faster would relax the threshold for rows that
are not slower. If nothing differs, the probability of any false word in the whole report is twice that.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from perf.gate import prior
from perf.gate.variance import Bools, Floats, Summary
from perf.gate.verdicts import LOOKS

FALSE_DISCOVERIES = 0.005
"""False discovery rate among the rows reported as SLOWER, and among those reported as FASTER."""

SUSPECT = 0.05
"""One-sided p-value below which a row gets the processes that confirm it."""


def floor_of(negligible: tuple[float, float], base_s: float) -> float:
    """Return the smallest change of interest as a log ratio: log(1 + max(share, seconds / base))."""
    return float(np.log1p(max(negligible[0], negligible[1] / base_s)))


@dataclass(frozen=True)
class ChangeEstimate:
    """Change of each row, and the distribution of its error: a mixture of two Student's t centred on 0."""

    change: Floats
    se: Floats
    dof: Floats
    own_se: Floats
    """Standard error from the row's process means alone."""

    own_dof: Floats
    own_weight: Floats
    """Probability that the row is unlike the others, so that only its own process means count."""

    def of(self, which: npt.NDArray[Any]) -> "ChangeEstimate":
        """Select rows by a mask or by indices of the last axis."""
        return ChangeEstimate(*(getattr(self, field.name)[..., which] for field in fields(self)))

    def tail(self, error: npt.ArrayLike) -> Floats:
        """Return the probability of an error above `error`."""
        moderated = special.stdtr(self.dof, -np.asarray(error) / self.se)
        own = special.stdtr(self.own_dof, -np.asarray(error) / self.own_se)
        return (1 - self.own_weight) * moderated + self.own_weight * own

    def quantile(self, tail: float) -> Floats:
        """Return the error that is exceeded with probability `tail` (below 0.5); infinite for one process."""
        ends = -self.se * special.stdtrit(self.dof, tail), -self.own_se * special.stdtrit(self.own_dof, tail)
        low, high = np.minimum(*ends), np.maximum(*ends)
        known = np.isfinite(high)
        low, high = np.where(known, low, 1.0), np.where(known, high, 1.0)
        for _ in range(60):
            middle = np.sqrt(low * high)
            above = self.tail(middle) > tail
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.where(known, high, np.inf)


def estimate(rows: Summary, clocks: npt.NDArray[Any] | None = None) -> ChangeEstimate:
    """Estimate each row's change and its error; rows of the last axis share a prior if their `clocks` are equal.

    The error is infinite for a row of one process. A row with one visit per process, or with too few rows of its clock
    for a prior, is judged on its own process means.
    """
    clocks = np.zeros(rows.change.shape[-1]) if clocks is None else np.asarray(clocks)
    comparable = (rows.within_dof > 0) & (rows.between_dof > 0)
    between_dof = np.maximum(rows.between_dof, 1)
    within_dof = np.maximum(rows.within_dof, 1)
    rho = np.where(comparable, rows.between / np.where(comparable, rows.within, 1.0), 1.0)
    scale, prior_dof = np.ones_like(rho), np.zeros_like(rho)
    for clock in np.unique(clocks):
        of = np.nonzero(clocks == clock)[0]
        fitted = prior.fit_prior(rho[..., of], between_dof[..., of], within_dof[..., of], comparable[..., of])
        scale[..., of], prior_dof[..., of] = (parameter[..., None] for parameter in fitted)
    borrowing = comparable & (prior_dof > 0)

    # Combine the prior's and the row's own information on its mean square: relative variances add.
    borrowed_dof = np.where(borrowing, 1 / (1 / np.maximum(prior_dof, 1e-9) + 1 / within_dof), 0.0)
    dof = borrowed_dof + rows.between_dof
    mean_square = (borrowed_dof * scale * rows.within + rows.between_dof * rows.between) / np.maximum(dof, 1e-9)
    outlier = prior.outlier_probability(rho, scale, between_dof, within_dof, borrowed_dof)

    judged = rows.between_dof > 0
    per_visit = rows.imbalance / np.maximum(rows.visits, 1)
    return ChangeEstimate(
        change=rows.change,
        se=np.where(judged, np.sqrt(mean_square * per_visit), np.inf),
        dof=np.maximum(dof, 1.0),
        own_se=np.where(judged, np.sqrt(rows.between * per_visit), np.inf),
        own_dof=between_dof,
        own_weight=np.where(borrowing, outlier, 1.0),
    )


def p_slower(rows: ChangeEstimate, floor: npt.ArrayLike) -> Floats:
    """Return the one-sided p-value of "the change is at most `floor`" (a log ratio, at least 0)."""
    return rows.tail(rows.change - np.asarray(floor))


def p_faster(rows: ChangeEstimate, floor: npt.ArrayLike) -> Floats:
    """Return the one-sided p-value of "the change is at least -`floor`"."""
    return rows.tail(-rows.change - np.asarray(floor))


@dataclass(frozen=True)
class Decision:
    """Decision of one look, one entry per row."""

    slower: Bools
    """Change beyond the floor; reported at the last look alone."""

    faster: Bools
    same: Bools
    """Confidence interval (`interval`) within -floor .. floor."""

    suspect: Bools
    """Rows that are likely enough to be slower or faster to get more processes."""


def decide(rows: ChangeEstimate, floor: npt.ArrayLike, looks: int = len(LOOKS)) -> Decision:
    """Decide which rows of a report (last axis) are slower, faster or the same, at one of `looks` looks."""
    floor, count = np.broadcast_to(floor, rows.change.shape), rows.change.shape[-1]
    slower, faster = p_slower(rows, floor), p_faster(rows, floor)
    discovered = [
        stats.false_discovery_control(np.minimum(p, 1.0), axis=-1, method="bh") <= FALSE_DISCOVERIES if count else p > 1
        for p in (slower, faster)
    ]
    ends_inside = 1 - 0.05 / 2 / looks  # the two one-sided tests of Schuirmann 1987
    return Decision(
        slower=discovered[0],
        faster=discovered[1],
        same=(slower >= ends_inside) & (faster >= ends_inside),
        suspect=np.minimum(slower, faster) <= SUSPECT,
    )


def interval(rows: ChangeEstimate, looks: int = len(LOOKS), level: float = 0.95) -> tuple[Floats, Floats]:
    """Return the confidence interval of the change, valid at whichever look measuring stopped."""
    half_width = rows.quantile((1 - level) / 2 / looks)
    return rows.change - half_width, rows.change + half_width


def min_detectable(rows: ChangeEstimate, floor: npt.ArrayLike) -> Floats:
    """Return the minimum slow-down, as a log ratio, that is reported as SLOWER with a probability of 95 %.

    Assumes rows measured like these and a single discovery in the report: the floor, plus the error that the decision
    allows for, plus the error that may hide the change.
    """
    threshold = FALSE_DISCOVERIES / max(rows.change.shape[-1], 1)
    return np.asarray(floor) + rows.quantile(threshold) + rows.quantile(0.05)


def at_last_look(rows: ChangeEstimate, processes: npt.ArrayLike) -> ChangeEstimate:
    """Extrapolate the error of rows measured in `processes` processes to the last look, for unchanged scatter."""
    last = LOOKS[-1]
    share = np.sqrt(np.asarray(processes, dtype=float) / last)
    return ChangeEstimate(
        change=rows.change,
        se=rows.se * share,
        dof=rows.dof + (last - np.asarray(processes)),
        own_se=rows.own_se * share,
        own_dof=np.full_like(rows.own_dof, last - 1.0),
        own_weight=rows.own_weight,
    )
