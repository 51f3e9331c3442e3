"""Speed-up of one arm over another from samples in several processes: interval, lower bound, number of processes.

A speed-up is the other's time over ours: above 1 ours is faster.

The first `FEWEST` processes are a pilot, whose scatter fixes the number of processes once (Stein 1945, A two-sample
test for a linear hypothesis whose power is independent of the variance). Adding processes until the interval is narrow
stops at a scatter that is too small by chance: once processes scatter by as much as the requested half-width, such
95 % intervals cover the speed-up in only 87 to 91 % of studies.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from perf.harness.intervals import LEVEL, of_trimmed_mean, student
from perf.options import Count, Finite, gathered
from perf.studies.device import device_kind
from perf.studies.on_file import NotOnFile

T = TypeVar("T")

Compared = Mapping[str, Any]
"""A row with ours_s and against_s, seconds of every sample, a list for each process, and the name `against`."""

FEWEST = 3
"""Processes of the pilot."""

LEVEL_AFTER_PILOT = 0.99
"""Level of Student's point with more processes than the pilot. It makes up for pilots that stop by a lucky scatter: the
coverage of all intervals together is 95 %.

In 200 000 simulated studies for each scatter from 0.1 to 3 times the requested half-width, with at most 6 to 20
processes, the coverage is 94.6 % or more. Mean number of processes, at most 12, beside adding one at a time: 3.0 and
3.0 at a scatter of 0.1, 3.8 and 3.2 at 0.3, 7.1 and 4.5 at 0.6, 9.6 and 7.2 at 1, 11.3 and 10.6 at 2. A pilot of five
needs 5.0, 5.0, 5.7, 9.1 and 11.7, and most speed-ups scatter by less than 0.3.
"""


NARROW = 0.02
"""Relative half-width of the widest interval with which a comparison of steps has a verdict."""


@dataclass(frozen=True)
class Effort:
    """Effort of a comparison: samples of each arm in a process, and the maximum number of processes."""

    rounds: int
    processes: int
    half_width: float
    """Relative half-width of an interval that is narrow enough."""


def effort_options(rounds: int, processes: int, on_a_cpu: int, half_width: float = NARROW) -> Callable[[Any], Any]:
    """Add --rounds, --half-width and --processes, with these defaults: the command gets `effort`."""
    most_on_a_gpu = processes
    elsewhere = f"; {on_a_cpu} on a CPU" if on_a_cpu != processes else ""

    def effort(rounds: int, half_width: float, processes: int | None) -> Effort:
        most = processes or (most_on_a_gpu if device_kind() == "cuda" else on_a_cpu)
        return Effort(rounds, most, half_width / 100)

    return gathered(
        "effort",
        effort,
        click.option("--rounds", default=rounds, show_default=True, type=Count(2), help="Samples a process."),
        click.option(
            "--half-width", default=100 * half_width, show_default=True, type=Finite(0), help="% that is narrow enough."
        ),
        click.option("--processes", type=Count(2, 1000), help=f"Maximum. Default: {processes}{elsewhere}."),
    )


def processes_wanted(rows: Sequence[Compared], effort: Effort) -> int:
    """Return how many processes make the speed-up over the best arm known well enough, or a bound on it above 1.

    `rows` hold the samples of the pilot.
    """
    wanted = processes_for_speedup(min(rows, key=speedup_of), effort)
    if best(rows, bound_of)[0] > 1:
        bound_logs = _bound_logs(min(rows, key=bound_of))
        wanted = min(wanted, processes_for(bound_logs, effort.half_width, effort.processes))
    return wanted


def processes_for_speedup(row: Compared, effort: Effort) -> int:
    """Return how many processes make the speed-up of one row known well enough."""
    return processes_for(_logs(row), effort.half_width, effort.processes)


def processes_for(pilot: list[float], half_width: float, most: int) -> int:
    """Return how many processes with the scatter of the pilot have an interval of at most this relative half-width.

    `pilot` holds a logarithm for each process. Beyond the pilot the interval is taken to be as wide as that of normal
    numbers with the pilot's scatter, and no narrower than Stein's. `most` if none is narrow enough.
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


def best(rows: Sequence[Compared], estimate: Callable[[Compared], tuple[float, float]]) -> tuple[float, float, str]:
    """Return the smallest `speedup_of` or `bound_of`, that over the fastest arm, its half-width, and the arm."""
    return min((*estimate(row), row["against"]) for row in rows)


def speedup_of(row: Compared) -> tuple[float, float]:
    """Return the other's time over ours, and the relative half-width of its 95 % interval.

    Each process gives the median over pairs of neighbouring samples.
    """
    return _over_processes(_logs(row))


def geometric_mean(rows: Iterable[Compared]) -> tuple[float, float]:
    """Return the geometric mean of the rows' speed-ups, and the half-width of its interval.

    Each process that all rows have gives one mean over the rows.
    """
    return _over_processes([statistics.fmean(logs) for logs in zip(*map(_logs, rows), strict=False)])


def _logs(row: Compared) -> list[float]:
    """Return the logarithm of each process's speed-up."""
    return [
        statistics.median(math.log(b / a) for a, b in _beside(ours, against))
        for ours, against in _beside(row["ours_s"], row["against_s"])
    ]


def bound_of(row: Compared) -> tuple[float, float]:
    """Return a lower bound on the speed-up and its half-width: the GPU's busy time in the other's step over our time.

    No faster host brings the other's step below its busy time. (0, inf) where that was not measured.
    """
    if not row.get("against_busy_s"):
        return 0.0, math.inf
    return _over_processes(_bound_logs(row))


def _bound_logs(row: Compared) -> list[float]:
    return [
        math.log(statistics.median(busy) / statistics.median(ours))
        for ours, busy in _beside(row["ours_s"], row["against_busy_s"])
    ]


def _beside(ours: list[T], others: list[T]) -> Iterator[tuple[T, T]]:
    """Pair the samples of two arms. Raises `NotOnFile` where a file has more of one."""
    if len(ours) != len(others):
        raise NotOnFile(f"as many samples of one arm as of the other: {len(ours)} and {len(others)} are")
    return zip(ours, others, strict=True)


def _over_processes(logs: list[float]) -> tuple[float, float]:
    """Return the speed-up and the half-width of the interval over processes, which covers what differs between builds.

    The mean is trimmed where there are enough processes, since in one of ten the host is slow.
    """
    mean = of_trimmed_mean(logs, level=LEVEL if len(logs) <= FEWEST else LEVEL_AFTER_PILOT)
    return math.exp(mean.value), math.expm1(mean.half)


def with_interval(speedup: float, half: float) -> str:
    """Format a speed-up with the half-width of its 95 % interval: 1.175× ± 0.3 %, of too few processes ± over 100 %."""
    return f"{factor(speedup)} ± {half_percent(half)}"


def half_percent(half: float) -> str:
    """Format a half-width."""
    return f"{100 * half:.1f} %" if half <= 1 else "over 100 %"


def cost_with_interval(speedup: float, half: float) -> str:
    """Format how much longer ours takes than the other: 1.9 % ± 0.9 %."""
    return f"{100 * (1 / speedup - 1):.1f} % ± {100 * half / speedup:.1f} %"


def factor(speedup: float) -> str:
    """Format a speed-up: 1.175×."""
    return f"{speedup:.3f}\u00d7" if speedup < 10 else f"{speedup:.2f}\u00d7"


@functools.cache
def _half_of_normal(number: int) -> float:
    """Return the half-width, after the pilot, of so many numbers at the quantiles of a normal distribution."""
    scores = [statistics.NormalDist().inv_cdf((index + 0.5) / number) for index in range(number)]
    return of_trimmed_mean(scores, level=LEVEL_AFTER_PILOT).half


def milliseconds(row: Compared, arm: str) -> float:
    """Return the median over all processes; `arm` is ours, against or against_busy."""
    return statistics.median(itertools.chain.from_iterable(row[f"{arm}_s"])) * 1e3
