"""What two arms' samples from several processes say: a ratio, its interval, and a bound on it."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

FEWEST = 3  # processes behind an interval


def is_settled(rows: list[dict[str, Any]], half_width: float) -> bool:
    """Whether the ratio to the best is known so well; or a bound on it below 1."""
    bound, bound_half, _ = best(rows, bound_of)
    return best(rows, ratio_of)[1] <= half_width or (bound_half <= half_width and bound < 1)


def best(rows: list[dict[str, Any]], of: Callable[[dict[str, Any]], tuple[float, float]]) -> tuple[float, float, str]:
    """The ratio to the fastest of the other arms by `ratio_of` or `bound_of`, its half-width, and the arm."""
    return max((*of(row), row["against"]) for row in rows)


def ratio_of(row: dict[str, Any]) -> tuple[float, float]:
    """Our time over the other's, and the relative half-width of its 95 % interval.

    A process gives the median ratio of neighbouring samples.
    """
    return _over_processes(_logs(row))


def geometric_mean(rows: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """Of the ratios of several rows, with the half-width of its interval.

    A process gives one mean, over all rows; one that not every row has gives none.
    """
    return _over_processes([statistics.fmean(logs) for logs in zip(*map(_logs, rows), strict=False)])


def _logs(row: dict[str, Any]) -> list[float]:
    """Of each process' ratio."""
    return [
        statistics.median(math.log(a / b) for a, b in zip(ours, against, strict=True))
        for ours, against in zip(row["ours_s"], row["against_s"], strict=True)
    ]


def bound_of(row: dict[str, Any]) -> tuple[float, float]:
    """Our time over that for which the GPU is busy with the other's step, which takes no less on any host.

    With its half-width, as `ratio_of`; (inf, inf) where that was not measured.
    """
    if not row.get("against_busy_s"):
        return math.inf, math.inf
    return _over_processes(
        [
            math.log(statistics.median(ours) / statistics.median(busy))
            for ours, busy in zip(row["ours_s"], row["against_busy_s"], strict=True)
        ]
    )


def _over_processes(logs: list[float]) -> tuple[float, float]:
    """The interval is of the logarithms of the processes: what differs between two builds of the same arms is in it.

    It is Student's; from five processes on that of the mean without the fifth at either end (Tukey and McLaughlin
    1963), since one process in ten has a slow host.
    """
    from scipy.stats import mstats

    if len(logs) < 2:
        return math.exp(logs[0]), math.inf
    low, high = mstats.trimmed_mean_ci(logs, limits=(0.2, 0.2) if len(logs) >= 5 else None)
    return math.exp((low + high) / 2), math.expm1((high - low) / 2)


def milliseconds(row: dict[str, Any], arm: str) -> float:
    """Median over all processes; `arm` is ours, against or against_busy."""
    return statistics.median(itertools.chain.from_iterable(row[f"{arm}_s"])) * 1e3
