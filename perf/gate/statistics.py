"""Is a row slower, and may that be believed? Pure functions of log changes; nothing here reads or measures anything.

A visit is one stay at a row with both arms in turn. Its change, log(head / base), is taken to be

    the row's change + an effect of the process + noise of the visit

so that a mean over P processes of V visits each has the variance (noise^2 / V + effect^2) / P. A row shows too few
processes to tell its own effect, so what the process means scatter beyond what visits explain,
rho = mean square between processes / mean square within them, borrows strength from the report's other rows:

1. rho's prior: scale * (an inverse chi-square with so many degrees of freedom), fitted to the rows of one clock by the
   moments of log rho (Smyth 2004, Linear models and empirical Bayes methods, section 6.2, where a variance stands in
   place of our ratio of two). A row's mean square is then its own and the prior's, weighted by degrees of freedom.
2. A row may be unlike the others, and three processes that happen to agree hide it. So 5 % of the prior knows nothing:
   with the probability that the row's own rho leaves for it, the row is judged on its process means alone, by Student's
   t with P - 1 degrees of freedom (a robust mixture prior, Schmidli et al. 2014, Robust meta-analytic-predictive
   priors; the same danger met by Phipson et al. 2016, Robust hyperparameter estimation).

A row is looked at several times, and is measured on only while nothing can be said of it. SAME may be said at each of
the K looks, so its interval is one of 1 - 0.05 / K (Bonferroni over looks; Armitage, McPherson and Rowe 1969, Repeated
significance tests, for what goes wrong without). SLOWER and FASTER are said at the last look alone, so that stopping
earlier can only take such words away, and the p-value of that look needs no correction. There, twelve processes have to
agree: a process that tosses a coin for 3 % (an allocation, a compiled module) looks like a change of the code in one of
four sets of three processes, in one of 2048 sets of twelve.

Over all rows of a report, false discoveries among the SLOWER are held at 0.5 %, and by themselves among the FASTER
(Benjamini and Hochberg 1995): in one family the rows that are faster would buy words for those that are not slower.
Where nothing differs, the two together are the probability of any false word in the whole report, 1 %.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from perf.gate.verdicts import LOOKS

Floats = npt.NDArray[np.float64]

TRIMMED = 0.1
"""Of a visit's pairs, at either end."""

FALSE_DISCOVERIES = 0.005
"""Among the rows called slower; as many among those called faster."""

SUSPECT = 0.05
"""One-sided p-value below which a row is worth the processes that confirm it."""

UNLIKE_THE_OTHERS = 0.05
"""Prior probability of a process effect of which the other rows know nothing."""

LARGEST_EXCESS = 1000.0
"""Up to which the mean square of such a row may exceed that of visits: log-uniform between 1 and this."""

SMALLEST_SD = 1e-4
"""Of a visit's change: a clock's grid makes visits equal that are not; a copy of 2 GiB repeats to 0.04 %."""

FEWEST_FOR_PRIOR = 8
"""Rows, below which nothing is borrowed: fitted to 5, a prior makes p-values up to 1.5 times too small."""


def visit_change(base_s: Any, head_s: Any) -> float:
    """log(head / base) of one visit: the mean of the paired log differences without the tenth at either end.

    Pairs, because the arms of a pair share the moment: over 1400 visits recorded on an H200 the medians of the two
    arms scatter 2 to 3 times as much above 100 us. A tenth, because a mean of all has outliers of 50 % in it and
    scatters up to 5 times as much above 1 ms, while a middle fifth, or a median, does not see that two calls in five
    are 50 % slower; over the rows of `pr` a mean without a tenth scatters as the middle fifth does, medians within 6 %.
    Raises ValueError where there are no pairs, or a time is not above 0.
    """
    base, head = _pairs(base_s, head_s)
    if not (np.minimum(base, head) > 0).all():
        raise ValueError("a time of 0 s or less was given; allowed: times above 0, or `visit_difference`")
    return _trimmed_mean(np.log(head / base))


def visit_difference(base_s: Any, head_s: Any) -> float:
    """head - base of one visit, in seconds, likewise: for samples that are differences, and may be negative."""
    base, head = _pairs(base_s, head_s)
    return _trimmed_mean(head - base)


def _pairs(base_s: Any, head_s: Any) -> tuple[Floats, Floats]:
    base, head = np.asarray(base_s, dtype=float), np.asarray(head_s, dtype=float)
    if base.shape != head.shape or base.ndim != 1 or not len(base):
        raise ValueError(f"samples come in pairs: base has shape {base.shape}, head {head.shape}")
    if not (np.isfinite(base).all() and np.isfinite(head).all()):
        raise ValueError("a time that is no number was given; allowed: finite times")
    return base, head


def _trimmed_mean(changes: Floats) -> float:
    ordered = np.sort(changes)  # scipy's trim_mean takes 0.4 ms, and a report has thousands of visits
    cut = int(TRIMMED * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def floor_of(negligible: tuple[float, float], base_s: float) -> float:
    """The least change of interest, as a log ratio: log(1 + max(share, seconds / base))."""
    return float(np.log1p(max(negligible[0], negligible[1] / base_s)))


@dataclass(frozen=True)
class Summary:
    """Rows, by the moments of their visits; every array has one entry a row, after any other axes."""

    change: Floats
    """Mean over visits; 0 where there are none, for its error is infinite."""

    within: Floats
    """Mean square of visits within processes; 0 where `within_dof` is."""

    within_dof: Floats
    between: Floats
    """Mean square of process means, each weighted by its visits: in expectation `within` if processes do nothing."""

    between_dof: Floats
    visits: Floats
    imbalance: Floats
    """Variance of `change` times visits, over the expectation of `between`; 1 for equal counts."""


def summarize(changes: npt.ArrayLike) -> Summary:
    """Analysis of variance, visits nested in processes, of log changes [..., processes, visits]; NaN is no visit.

    For unequal counts see Searle, Casella and McCulloch 1992, Variance components, section 3.6.
    """
    x = np.asarray(changes, dtype=float)
    taken = ~np.isnan(x)
    x = np.where(taken, x, 0.0)
    n = taken.sum(-1).astype(float)
    visits, processes = n.sum(-1), (n > 0).sum(-1).astype(float)
    means = x.sum(-1) / np.maximum(n, 1)
    change = x.sum((-1, -2)) / np.maximum(visits, 1)
    within_dof, between_dof = visits - processes, np.maximum(processes - 1, 0)
    within = (np.where(taken, x - means[..., None], 0.0) ** 2).sum((-1, -2)) / np.maximum(within_dof, 1)
    between = (n * (means - change[..., None]) ** 2).sum(-1) / np.maximum(between_dof, 1)
    share = (n**2).sum(-1) / np.maximum(visits, 1)  # visits a process, weighted by themselves
    effective = (visits - share) / np.maximum(between_dof, 1)
    imbalance = np.where(between_dof > 0, share / np.where(effective > 0, effective, 1.0), 1.0)
    return Summary(
        change=change,
        within=np.where(within_dof > 0, np.maximum(within, SMALLEST_SD**2), 0.0),
        within_dof=within_dof,
        between=np.where(between_dof > 0, np.maximum(between, SMALLEST_SD**2), 0.0),
        between_dof=between_dof,
        visits=visits,
        imbalance=imbalance,
    )


@dataclass(frozen=True)
class Estimate:
    """Rows: a change, and the distribution of its error, a mixture of two of Student's t centred on 0."""

    change: Floats
    se: Floats
    dof: Floats
    own_se: Floats
    """Of the row's process means alone."""

    own_dof: Floats
    own_weight: Floats
    """Probability that the row is unlike the others, so that only its own count."""

    def of(self, which: npt.NDArray[Any]) -> "Estimate":
        """Some of the rows: a mask over the last axis, or indices."""
        return Estimate(*(getattr(self, one.name)[..., which] for one in fields(self)))

    def tail(self, error: npt.ArrayLike) -> Floats:
        """The probability of an error above this one."""
        moderated = special.stdtr(self.dof, -np.asarray(error) / self.se)
        own = special.stdtr(self.own_dof, -np.asarray(error) / self.own_se)
        return (1 - self.own_weight) * moderated + self.own_weight * own

    def quantile(self, tail: float) -> Floats:
        """The error exceeded with this probability (below 0.5); infinite for a row of one process."""
        ends = -self.se * special.stdtrit(self.dof, tail), -self.own_se * special.stdtrit(self.own_dof, tail)
        low, high = np.minimum(*ends), np.maximum(*ends)
        known = np.isfinite(high)
        low, high = np.where(known, low, 1.0), np.where(known, high, 1.0)
        for _ in range(60):
            middle = np.sqrt(low * high)
            above = self.tail(middle) > tail
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.where(known, high, np.inf)


def estimate(rows: Summary, clocks: npt.NDArray[Any] | None = None) -> Estimate:
    """Each row's change and its error; `clocks` says, for every row of the last axis, with which others it shares.

    A row of one process has an infinite error; one visit a process, or fewer rows of a clock than it takes to fit a
    prior, leave a row its own process means.
    """
    clocks = np.zeros(rows.change.shape[-1]) if clocks is None else np.asarray(clocks)
    comparable = (rows.within_dof > 0) & (rows.between_dof > 0)
    between_dof = np.maximum(rows.between_dof, 1)
    within_dof = np.maximum(rows.within_dof, 1)
    rho = np.where(comparable, rows.between / np.where(comparable, rows.within, 1.0), 1.0)
    scale, prior_dof = np.ones_like(rho), np.zeros_like(rho)
    for clock in np.unique(clocks):
        of = np.nonzero(clocks == clock)[0]
        fitted = fit_prior(rho[..., of], between_dof[..., of], within_dof[..., of], comparable[..., of])
        scale[..., of], prior_dof[..., of] = (one[..., None] for one in fitted)
    borrowing = comparable & (prior_dof > 0)

    # what the prior and the row's own visits say of its mean square: relative variances add
    borrowed_dof = np.where(borrowing, 1 / (1 / np.maximum(prior_dof, 1e-9) + 1 / within_dof), 0.0)
    dof = borrowed_dof + rows.between_dof
    mean_square = (borrowed_dof * scale * rows.within + rows.between_dof * rows.between) / np.maximum(dof, 1e-9)
    weight = np.where(borrowing, _own_weight(rho, scale, between_dof, within_dof, borrowed_dof), 1.0)

    judged = rows.between_dof > 0
    per_visit = rows.imbalance / np.maximum(rows.visits, 1)
    own_se = np.where(judged, np.sqrt(rows.between * per_visit), np.inf)
    return Estimate(
        change=rows.change,
        se=np.where(judged, np.sqrt(mean_square * per_visit), np.inf),
        dof=np.maximum(dof, 1.0),
        own_se=own_se,
        own_dof=between_dof,
        own_weight=weight,
    )


def fit_prior(rho: Floats, between_dof: Floats, within_dof: Floats, valid: npt.NDArray[np.bool_]) -> tuple[Any, Any]:
    """Scale and degrees of freedom of the prior of rho over the last axis, from mean and variance of log rho.

    Of log F its mean is digamma(d1 / 2) - log(d1 / 2) less the same of d2, its variance trigamma(d1 / 2) + trigamma(d2
    / 2); what log rho has beyond them is the prior's (Smyth 2004, section 6.2). The scale is at least 1, since no
    process effect makes means agree better than visits allow. 0 degrees of freedom where too few rows are valid.
    """
    count = valid.sum(-1)
    enough = count >= FEWEST_FOR_PRIOR
    n = np.maximum(count, 2)
    centred = np.log(rho) - _log_bias(between_dof) + _log_bias(within_dof)
    mean = np.where(valid, centred, 0.0).sum(-1) / n
    square = np.where(valid, (centred - mean[..., None]) ** 2, 0.0).sum(-1) / (n - 1)
    known = np.where(valid, _trigamma(between_dof / 2) + _trigamma(within_dof / 2), 0.0).sum(-1) / n
    excess = square - known
    dof = np.where(excess > 1e-6, 2 * _trigamma_inverse(np.maximum(excess, 1e-6)), 2e6)
    scale = np.maximum(np.exp(mean + _log_bias(dof)), 1.0)
    return np.where(enough, scale, 1.0), np.where(enough, dof, 0.0)


def p_slower(rows: Estimate, floor: npt.ArrayLike) -> Floats:
    """One-sided p-value of "the change is at most `floor`" (a log ratio, at least 0)."""
    return rows.tail(rows.change - np.asarray(floor))


def p_faster(rows: Estimate, floor: npt.ArrayLike) -> Floats:
    """One-sided p-value of "the change is at least -`floor`"."""
    return rows.tail(-rows.change - np.asarray(floor))


@dataclass(frozen=True)
class Decision:
    """What a look says of rows."""

    slower: npt.NDArray[np.bool_]
    """Beyond the floor; believed at the last look alone."""

    faster: npt.NDArray[np.bool_]
    same: npt.NDArray[np.bool_]
    """The interval of `interval` lies inside -floor .. floor."""

    suspect: npt.NDArray[np.bool_]
    """Likely enough to be slower or faster that more processes should tell."""


def decide(
    rows: Estimate, floor: npt.ArrayLike, looks: int, q: float = FALSE_DISCOVERIES, level: float = 0.95
) -> Decision:
    """Which rows (last axis: those of one report) are slower, faster or the same, at one of so many looks."""
    floor, count = np.broadcast_to(floor, rows.change.shape), rows.change.shape[-1]
    slower, faster = p_slower(rows, floor), p_faster(rows, floor)
    found = [
        stats.false_discovery_control(np.minimum(p, 1.0), axis=-1, method="bh") <= q if count else p > 1
        for p in (slower, faster)
    ]
    ends_inside = 1 - (1 - level) / 2 / looks  # the two one-sided tests of Schuirmann 1987
    return Decision(
        slower=found[0],
        faster=found[1],
        same=(slower >= ends_inside) & (faster >= ends_inside),
        suspect=np.minimum(slower, faster) <= SUSPECT,
    )


def interval(rows: Estimate, looks: int, level: float = 0.95) -> tuple[Floats, Floats]:
    """Of the change, whichever of the looks was the last."""
    half = rows.quantile((1 - level) / 2 / looks)
    return rows.change - half, rows.change + half


def smallest_visible(rows: Estimate, floor: npt.ArrayLike, q: float = FALSE_DISCOVERIES, power: float = 0.95) -> Floats:
    """The least slow-down, as a log ratio, that would be called slower with the probability `power`.

    By rows measured as these were, as the only discovery of their report: the floor + the error that the decision
    allows for + the one that may hide it.
    """
    decision = q / max(rows.change.shape[-1], 1)
    return np.asarray(floor) + rows.quantile(decision) + rows.quantile(1 - power)


def confirmed(rows: Estimate, processes: npt.ArrayLike, last: int = LOOKS[-1]) -> Estimate:
    """The error that rows of so many processes have after the last look, if visits go on scattering as they did."""
    share = np.sqrt(np.asarray(processes, dtype=float) / last)
    return Estimate(
        change=rows.change,
        se=rows.se * share,
        dof=rows.dof + (last - np.asarray(processes)),
        own_se=rows.own_se * share,
        own_dof=np.full_like(rows.own_dof, last - 1.0),
        own_weight=rows.own_weight,
    )


def _own_weight(rho: Floats, scale: Floats, d1: Floats, d2: Floats, borrowed_dof: Floats) -> Floats:
    """Posterior probability that a row is unlike the others: its rho under the prior, and log-uniformly scaled."""
    like = _f_density(rho / scale, d1, np.maximum(borrowed_dof, 1e-9)) / scale
    below = special.fdtr(d1, d2, rho) - special.fdtr(d1, d2, rho / LARGEST_EXCESS)
    unlike = below / (rho * np.log(LARGEST_EXCESS))
    odds = UNLIKE_THE_OTHERS * unlike / np.maximum((1 - UNLIKE_THE_OTHERS) * like, 1e-300)
    return odds / (1 + odds)


def _f_density(x: Floats, d1: Floats, d2: Floats) -> Floats:
    log = d1 / 2 * np.log(d1 / d2) + (d1 / 2 - 1) * np.log(x) - (d1 + d2) / 2 * np.log1p(d1 / d2 * x)
    return np.exp(log - special.betaln(d1 / 2, d2 / 2))


def _log_bias(dof: Floats) -> Floats:
    """Expectation of log(chi-square / its degrees of freedom)."""
    return special.digamma(dof / 2) - np.log(dof / 2)


def _trigamma(x: Floats) -> Floats:
    return special.zeta(2.0, x)  # equal, and many times faster than polygamma


def _trigamma_inverse(y: Floats) -> Floats:
    """Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix)."""
    x = 0.5 + 1 / y
    for _ in range(8):
        trigamma = _trigamma(x)
        x = x + trigamma * (1 - trigamma / y) / (-2 * special.zeta(3.0, x))  # tetragamma = -2 zeta(3, x)
    return x
