"""Speed-up of one arm over another from samples in several processes: interval, lower bound, number of processes.

A speed-up is the other's time over ours: above 1 ours is faster.

The first `FEWEST` processes are a pilot; its scatter fixes how many there will be, once (Stein 1945, A two-sample test
for a linear hypothesis whose power is independent of the variance). Adding processes until the interval is narrow stops
at a scatter that is too small by chance: such intervals hold the speed-up in 87 to 91 % of studies once processes
scatter by as much as the half-width asked for, not in 95 %.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from perf.harness.intervals import LEVEL, of_trimmed_mean, student

FEWEST = 3  # processes behind an interval

LEVEL_AFTER_PILOT = 0.99
"""Of Student's point where there are more than the pilot. Their number, too, hangs on scatter that the interval is made
of, and a pilot that stops by a lucky scatter has to be made up for: all in all this holds 95 %.

By 200 000 studies for each scatter from 0.1 to 3 times the half-width asked for, 6 to 20 processes at most: 94.6 % and
more. Processes, of 12 at most, against adding one at a time: 3.0 and 3.0 at 0.1, 3.8 and 3.2 at 0.3, 7.1 and 4.5 at
0.6, 9.6 and 7.2 at 1, 11.3 and 10.6 at 2. A pilot of five needs 5.0, 5.0, 5.7, 9.1 and 11.7, and most speed-ups scatter
by less than 0.3.
"""


def processes_wanted(rows: list[dict[str, Any]], half_width: float, most: int) -> int:
    """How many processes make the speed-up over the best known so well, or a bound on it above 1: `FEWEST` to `most`.

    `rows` hold the pilot.
    """
    least = min(rows, key=speedup_of)
    wanted = processes_for(_logs(least), half_width, most)
    if best(rows, bound_of)[0] > 1:
        bound = min(rows, key=bound_of)
        wanted = min(wanted, processes_for(_bound_logs(bound), half_width, most))
    return wanted


def processes_for_speedup(row: dict[str, Any], half_width: float, most: int) -> int:
    """The same for the speed-up of one row."""
    return processes_for(_logs(row), half_width, most)


def processes_for(pilot: list[float], half_width: float, most: int) -> int:
    """How many processes of this scatter have an interval of at most this relative half-width.

    `pilot` are logarithms, one a process. More than these take an interval as wide as normal numbers of the pilot's
    scatter would have it, and no narrower than Stein's; `most` if none is narrow enough.
    """
    if len(pilot) < 2:
        return most
    if _over_processes(pilot)[1] <= half_width:
        return len(pilot)
    scatter, point = statistics.stdev(pilot), student(len(pilot) - 1)
    for number in range(len(pilot) + 1, most):
        if math.expm1(scatter * max(_half_of_normal(number), point / math.sqrt(number))) <= half_width:
            return number
    return most


def best(rows: list[dict[str, Any]], of: Callable[[dict[str, Any]], tuple[float, float]]) -> tuple[float, float, str]:
    """The speed-up over the fastest of the other arms by `speedup_of` or `bound_of`, its half-width, and the arm."""
    return min((*of(row), row["against"]) for row in rows)


def speedup_of(row: dict[str, Any]) -> tuple[float, float]:
    """The other's time over ours, and the relative half-width of its 95 % interval.

    A process gives the median over pairs of neighbouring samples.
    """
    return _over_processes(_logs(row))


def geometric_mean(rows: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """Of the speed-ups of several rows, with the half-width of its interval.

    A process gives one mean, over all rows; one that not every row has gives none.
    """
    return _over_processes([statistics.fmean(logs) for logs in zip(*map(_logs, rows), strict=False)])


def _logs(row: dict[str, Any]) -> list[float]:
    """The logarithm of each process' speed-up."""
    return [
        statistics.median(math.log(b / a) for a, b in zip(ours, against, strict=True))
        for ours, against in zip(row["ours_s"], row["against_s"], strict=True)
    ]


def bound_of(row: dict[str, Any]) -> tuple[float, float]:
    """A lower bound on the speed-up: the GPU's busy time in the other's step, below which no host brings it, over ours.

    With its half-width, as `speedup_of`; (0, inf) where the busy time was not measured.
    """
    if not row.get("against_busy_s"):
        return 0.0, math.inf
    return _over_processes(_bound_logs(row))


def _bound_logs(row: dict[str, Any]) -> list[float]:
    return [
        math.log(statistics.median(busy) / statistics.median(ours))
        for ours, busy in zip(row["ours_s"], row["against_busy_s"], strict=True)
    ]


def _over_processes(logs: list[float]) -> tuple[float, float]:
    """The interval is of the logarithms of the processes: what differs between two builds of the same arms is in it.

    Of a trimmed mean where there are enough of them, since one process in ten has a slow host.
    """
    known = of_trimmed_mean(logs, level=LEVEL if len(logs) <= FEWEST else LEVEL_AFTER_PILOT)
    return math.exp(known.value), math.expm1(known.half)


def known(speedup: float, half: float) -> str:
    """1.175× ± 0.3 %: a speed-up with the half-width of its 95 % interval."""
    return f"{figure(speedup)} ± {100 * half:.1f} %"


def figure(speedup: float) -> str:
    """1.175×."""
    return f"{speedup:.3f}\u00d7" if speedup < 10 else f"{speedup:.2f}\u00d7"


@functools.cache
def _half_of_normal(number: int) -> float:
    """Half-width, after the pilot, of so many numbers that lie as the quantiles of a normal distribution do."""
    scores = [statistics.NormalDist().inv_cdf((index + 0.5) / number) for index in range(number)]
    return of_trimmed_mean(scores, level=LEVEL_AFTER_PILOT).half


def milliseconds(row: dict[str, Any], arm: str) -> float:
    """Median over all processes; `arm` is ours, against or against_busy."""
    return statistics.median(itertools.chain.from_iterable(row[f"{arm}_s"])) * 1e3
