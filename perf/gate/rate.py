"""Observed rates with exact confidence bounds, as numbers and as text."""

import math
from dataclasses import dataclass

from perf import units


@dataclass(frozen=True)
class Rate:
    """A binomial rate with exact bounds (Clopper and Pearson 1934)."""

    hits: int
    of: int

    @property
    def share(self) -> float:
        """Observed rate, between 0 and 1."""
        return self.hits / self.of

    @property
    def upper(self) -> float:
        """One-sided 95 % upper bound."""
        from scipy.stats import binomtest

        return float(binomtest(self.hits, self.of, alternative="less").proportion_ci(0.95).high)

    @property
    def lower(self) -> float:
        """One-sided 95 % lower bound."""
        from scipy.stats import binomtest

        return float(binomtest(self.hits, self.of, alternative="greater").proportion_ci(0.95).low)

    def words(self, *, at_most: bool) -> str:
        """Format share and bound: "50.0 %, at most 97.5 %"; "-" for 0 of 0."""
        return f"{percent(self.share)}, {self.bound(at_most=at_most)}" if self.of else "-"

    def bound(self, *, at_most: bool) -> str:
        """Format the bound, rounded to the conservative side: "at most 0.8 %"."""
        if at_most:
            return f"at most {percent(math.ceil(1e3 * self.upper) / 1e3 if self.upper >= 1e-3 else self.upper)}"
        return f"at least {percent(math.floor(1e3 * self.lower) / 1e3)}"


def percent(share: float) -> str:
    """Format a share: 12.3 %; two significant digits below 0.1 %."""
    return f"{100 * share:.1f} %" if share == 0 or share >= 1e-3 else f"{units.digits(100 * share, 2)} %"
