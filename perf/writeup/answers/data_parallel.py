"""Cost of communication: an all-reduce by itself, data parallelism in a step, and a sharded optimizer."""

import functools
import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from perf.site.estimate import of_samples, ratio
from perf.studies.on_file import NotOnFile, some
from perf.studies.parallel import ddp, overlap
from perf.studies.parallel.all_reduce import BACKENDS, rates
from perf.studies.parallel.sharding import POINTS
from perf.studies.rows import Row
from perf.units import MIB
from perf.workloads.closed_forms import best_bucket_bytes, exposed_seconds, peak_state_bytes


def seconds(row: Row, samples: str) -> float:
    """Median of a row's samples."""
    return statistics.median(row[samples])


class DataParallel:
    """Figures of one document of `study ddp`: measured rows of one size, context and number of ranks.

    Args:
        rows: the measured rows.
        all_reduce: measured rows of `study all-reduce`, of any number of ranks.
        traces: rows of `study overlap` of the same size, of any number of ranks.
    """

    def __init__(self, rows: Sequence[Any], all_reduce: Sequence[Any] = (), traces: Sequence[Any] = ()) -> None:
        """Keep the rows."""
        self.rows = list(rows)
        self.swept = sorted(
            (row for row in self.rows if row["strategy"] == "bucketed"), key=lambda row: row["bucket_size_mb"]
        )
        ranks = {row["world_size"] for row in self.rows or traces}
        self.traces = [row for row in traces if row["world_size"] in ranks]
        self._all_reduce = [row for row in all_reduce if row["device"] == "cuda" and row["world_size"] in ranks]

    def row(self, strategy: str) -> Row:
        """The row of a strategy without bucket sizes. Raises `NotOnFile` if it was not measured."""
        for row in self.rows:
            if row["strategy"] == strategy:
                return row
        raise NotOnFile(f"strategy {strategy}")

    def has(self, *strategies: str) -> bool:
        """Whether all of these were measured."""
        return {row["strategy"] for row in self.rows} >= set(strategies)

    def step_s(self, strategy: str) -> float:
        """Median time of its step."""
        return seconds(self.row(strategy), "step_s")

    def exposed_s(self, strategy: str) -> float:
        """Median time that communication adds to its step."""
        return seconds(self.row(strategy), "exposed_s")

    def share(self, strategy: str) -> float:
        """Part of the step that communication adds."""
        return self.exposed_s(strategy) / self.step_s(strategy)

    def best(self) -> Row:
        """The row of the shortest step."""
        return min(self.rows, key=lambda row: seconds(row, "step_s"))

    def least_row(self) -> Row:
        """The row of the sweep of bucket sizes whose communication adds the least."""
        return min(self.swept, key=lambda row: seconds(row, "exposed_s"))

    median = staticmethod(seconds)

    @staticmethod
    def half_s(row: Row, samples: str) -> float:
        """Half of the 95 % interval of the median of a row's "step_s" or "exposed_s"."""
        return (found := of_samples(row[samples])).high - found.median

    def rivals(self, row: Row) -> list[Row]:
        """The other rows whose steps are not distinguishable from that of this row."""
        return [other for other in self.rows if other is not row and not self.is_resolved(row, other, "step_s")]

    @staticmethod
    def is_resolved(one: Row, other: Row, samples: str) -> bool:
        """Whether the ratio of their "step_s" or "exposed_s", if both are above 0, is distinguishable from 1."""
        mine, others = of_samples(one[samples]), of_samples(other[samples])
        return min(mine.median, others.median) > 0 and ratio(mine, others).verdict != "even"

    @property
    def alone_s(self) -> float:
        """A step without communication: median over the rows of step less what communication adds."""
        return statistics.median(seconds(row, "step_s") - seconds(row, "exposed_s") for row in self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of gradients that a rank reduces in a step."""
        reduced = [row["facts"]["bytes"] for row in self.rows if "bytes" in row["facts"]]
        return int(some(reduced, "bytes of gradients")[0])

    @property
    def single(self) -> Row | None:
        """The largest all-reduce of NCCL over as many ranks."""
        return max(self._all_reduce, key=lambda row: row["megabytes"], default=None)

    @property
    def rate(self) -> float | None:
        """Its bytes per second."""
        return rates(self.single)[0] if self.single else None

    def sent_s(self, num_bytes: float) -> float:
        """Time of so many bytes at that rate."""
        if self.rate is None:
            raise NotOnFile("the rate of an all-reduce")
        return num_bytes / self.rate

    @property
    def fit(self) -> tuple[float, float] | None:
        """Bandwidth and overhead per call that fit the sweep of bucket sizes, by the course's model."""
        return ddp.fitted(self.rows)

    def modelled_s(self, row: Row) -> float:
        """Prediction of the fitted model for a row of the sweep."""
        assert self.fit
        return exposed_seconds(row["facts"]["bytes"], row["facts"]["calls"], self.fit)

    def miss_s(self, row: Row) -> float:
        """By how much the fitted model misses a row of the sweep."""
        return abs(self.modelled_s(row) - seconds(row, "exposed_s"))

    def least_explained(self) -> Row:
        """The row of the sweep that it misses by most."""
        return max(self.swept, key=self.miss_s)

    def best_bucket_mib(self) -> float:
        """The bucket that adds the least by the fitted model."""
        assert self.fit
        return best_bucket_bytes(self.num_bytes, self.fit) / MIB

    def compute_s(self, *strategies: str) -> list[float]:
        """Time of the kernels that compute in the traced steps of these strategies, every rank."""
        return [overlap.length(row["compute"]) for row in self.traces if row["strategy"] in strategies]

    def slowed(self) -> bool:
        """Whether the kernels that compute take longer beside communication than a whole step without it."""
        after = self.compute_s("overlapped", "bucketed")
        return bool(after) and min(after) > self.alone_s

    def overlaps(self, *strategies: str) -> list[float]:
        """Part of the communication during which the same rank computes, every rank."""
        return [
            overlap.common(row["compute"], row["communication"]) / overlap.length(row["communication"])
            for row in self.traces
            if row["strategy"] in strategies and row["communication"]
        ]


def growth(rows: list[Row]) -> list[dict[str, Any]]:
    """For each backend: what more bytes and what more ranks cost, by its smallest and its largest all-reduce."""
    shown = []
    for device, backend in BACKENDS.items():
        cells = {(row["world_size"], row["megabytes"]): row for row in rows if row["device"] == device}
        if not cells:
            continue
        sizes = sorted({size for _, size in cells})
        least, most = sizes[0], sizes[-1]
        ranks = sorted({number for number, _ in cells if {(number, least), (number, most)} <= cells.keys()})
        grown = functools.partial(_grown, cells)
        by_bytes = [{"ranks": number} | grown((number, least), (number, most)) for number in ranks if least < most]
        by_ranks = [
            {
                "before": before,
                "after": after,
                "least": grown((before, least), (after, least))["time"],
                "most": grown((before, most), (after, most)),
                "ring": (1 - 1 / after) / (1 - 1 / before),
            }
            for before, after in itertools.pairwise(ranks)
        ]
        shown.append({"backend": backend, "least": least, "most": most, "bytes": by_bytes, "ranks": by_ranks})
    return shown


def _grown(cells: dict[Any, Row], before: Any, after: Any) -> dict[str, float]:
    """The ratio of their times, and the bus bandwidth of both."""
    first, second = cells[before], cells[after]
    return {
        "time": seconds(second, "samples_s") / seconds(first, "samples_s"),
        "before_rate": rates(first)[1],
        "after_rate": rates(second)[1],
    }


def shardings(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """For each sharding: its step, over the step with the whole state, and its memory, beside what must exist then."""
    wholes = (of_samples(row["samples_s"]) for row in rows if row["sharding"] == "none")
    whole = min(wholes, key=lambda step: step.median, default=None)
    shown = {}
    for row in rows:
        facts, step = row["facts"], of_samples(row["samples_s"])
        one: dict[str, Any] = {"step_s": step.median, "of_whole": ratio(whole or step, step)}
        one |= {name: facts[name] for name in ("parameter_bytes", "optimizer_bytes")}
        if all(name in facts for name in POINTS):
            states = peak_state_bytes(row["size"], row["world_size"], row["sharding"])
            one |= {name: facts[name] for name in POINTS} | {"states_bytes": states}
            one["rest_bytes"] = facts["after_step_bytes"] - states
        shown[row["sharding"]] = one
    return shown
