"""Roofline of a case, from rates measured in the same session."""

from dataclasses import dataclass

from perf.harness.records import CaseResult


@dataclass(frozen=True)
class Bound:
    """Minimum time of a case's work at the measured rates of its device."""

    arithmetic_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        """Both go on at once."""
        return max(self.arithmetic_s, self.memory_s)

    @property
    def limit(self) -> str:
        """The longer of the two."""
        return "arithmetic" if self.arithmetic_s >= self.memory_s else "memory"


def times_the_work(result: CaseResult) -> bool:
    """Whether its time is the work's: a first call mostly compiles, and "exposed" is a difference of two times."""
    return result.clock != "first_call" and result.params.get("mode") != "exposed"


def bound_of(result: CaseResult) -> Bound | None:
    """Return the bound; None for a case without work, without the ceilings that bound it, or timed without its work.

    Operands in warm caches may come faster than memory gives them: only what L2 cannot hold is counted.
    """
    if not times_the_work(result):
        return None
    fastest = result.session.ceilings.get("matmul_flops_per_s", {}).get(result.matmul_dtype)
    bandwidth = result.session.ceilings.get("copy_bytes_per_s")
    if not bandwidth or (result.flops and not fastest):
        return None
    found = Bound(result.flops / fastest if fastest else 0.0, _from_memory(result) / bandwidth)
    return found if found.seconds > 0 else None


def _from_memory(result: CaseResult) -> float:
    if result.cache != "warm":
        return result.min_bytes
    l2_bytes = result.session.device.get("l2_bytes")
    return max(0.0, result.min_bytes - l2_bytes) if l2_bytes else 0.0


def rate(result: CaseResult, seconds: float) -> float | None:
    """FLOP/s; None of a time that is not the work's."""
    return result.flops / seconds if result.flops and times_the_work(result) else None


def attained(result: CaseResult, seconds: float) -> float | None:
    """Return the minimum time over the time taken; None where `bound_of` is None."""
    found = bound_of(result)
    return found.seconds / seconds if found else None


def intensity(result: CaseResult) -> float | None:
    """Return FLOPs per byte that every implementation must move; None if either is unknown."""
    return result.flops / result.min_bytes if result.flops and result.min_bytes else None
