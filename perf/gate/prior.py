"""Empirical Bayes prior of the process effect, fitted to the rows that share a clock.

rho of a row is its mean square between processes over its mean square within them. Its prior is scale times an inverse
chi-square, fitted by the moments of log rho (Smyth 2004, Linear models and empirical Bayes methods, section 6.2, where
a variance stands in place of our ratio of two).
"""

from typing import Any

import numpy as np
from scipy import special

from perf.gate.variance import Bools, Floats

OUTLIER_PRIOR = 0.05
"""Prior probability that a row's process effect is unrelated to the other rows'."""

MAX_EXCESS = 1000.0
"""Maximum rho of such a row; log-uniform between 1 and this."""

MIN_ROWS = 8
"""Minimum number of rows for a prior: fitted to 5, it makes p-values up to 1.5 times too small."""


def fit_prior(rho: Floats, between_dof: Floats, within_dof: Floats, valid: Bools) -> tuple[Any, Any]:
    """Fit scale and degrees of freedom of rho's prior over the last axis to the mean and variance of log rho.

    The mean of log F is digamma(d1 / 2) - log(d1 / 2) minus the same of d2, its variance trigamma(d1 / 2) +
    trigamma(d2 / 2); any excess belongs to the prior (Smyth 2004, section 6.2). The scale is at least 1, since no
    process effect makes means agree better than visits allow. Returns 0 degrees of freedom for too few valid rows.
    """
    count = valid.sum(-1)
    enough = count >= MIN_ROWS
    n = np.maximum(count, 2)
    centred = np.log(rho) - _log_bias(between_dof) + _log_bias(within_dof)
    mean = np.where(valid, centred, 0.0).sum(-1) / n
    square = np.where(valid, (centred - mean[..., None]) ** 2, 0.0).sum(-1) / (n - 1)
    known = np.where(valid, _trigamma(between_dof / 2) + _trigamma(within_dof / 2), 0.0).sum(-1) / n
    excess = square - known
    dof = np.where(excess > 1e-6, 2 * _trigamma_inverse(np.maximum(excess, 1e-6)), 2e6)
    scale = np.maximum(np.exp(mean + _log_bias(dof)), 1.0)
    return np.where(enough, scale, 1.0), np.where(enough, dof, 0.0)


def outlier_probability(rho: Floats, scale: Floats, d1: Floats, d2: Floats, borrowed_dof: Floats) -> Floats:
    """Return the posterior probability that a row is unlike the others: prior against a log-uniform rho."""
    like = _f_density(rho / scale, d1, np.maximum(borrowed_dof, 1e-9)) / scale
    below = special.fdtr(d1, d2, rho) - special.fdtr(d1, d2, rho / MAX_EXCESS)
    unlike = below / (rho * np.log(MAX_EXCESS))
    odds = OUTLIER_PRIOR * unlike / np.maximum((1 - OUTLIER_PRIOR) * like, 1e-300)
    return odds / (1 + odds)


def _f_density(x: Floats, d1: Floats, d2: Floats) -> Floats:
    log = d1 / 2 * np.log(d1 / d2) + (d1 / 2 - 1) * np.log(x) - (d1 + d2) / 2 * np.log1p(d1 / d2 * x)
    return np.exp(log - special.betaln(d1 / 2, d2 / 2))


def _log_bias(dof: Floats) -> Floats:
    """Return the expectation of log(chi-square / its degrees of freedom)."""
    return special.digamma(dof / 2) - np.log(dof / 2)


def _trigamma(x: Floats) -> Floats:
    return special.zeta(2.0, x)  # equal, and many times faster than polygamma


def _trigamma_inverse(y: Floats) -> Floats:
    """Invert trigamma by Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix)."""
    x = 0.5 + 1 / y
    for _ in range(8):
        trigamma = _trigamma(x)
        x = x + trigamma * (1 - trigamma / y) / (-2 * special.zeta(3.0, x))  # tetragamma = -2 zeta(3, x)
    return x
