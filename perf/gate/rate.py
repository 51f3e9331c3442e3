"""How often something happened, in numbers and in words, with what may be claimed of it."""

import math
from dataclasses import dataclass

from perf import units


@dataclass(frozen=True)
class Rate:
    """So many of so many, with exact bounds (Clopper and Pearson 1934)."""

    hits: int
    of: int

    @property
    def share(self) -> float:
        """Between 0 and 1."""
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
        """ "50.0 %, at most 97.5 %": the share and its bound; "-" of nothing."""
        return f"{percent(self.share)}, {self.bound(at_most=at_most)}" if self.of else "-"

    def bound(self, *, at_most: bool) -> str:
        """ "at most 0.8 %": rounded to the side that claims less."""
        if at_most:
            return f"at most {percent(math.ceil(1e3 * self.upper) / 1e3 if self.upper >= 1e-3 else self.upper)}"
        return f"at least {percent(math.floor(1e3 * self.lower) / 1e3)}"


def percent(share: float) -> str:
    """12.3 %; below 0.1 % two digits."""
    return f"{100 * share:.1f} %" if share == 0 or share >= 1e-3 else f"{units.digits(100 * share, 2)} %"
