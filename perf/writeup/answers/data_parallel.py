"""What data parallelism adds to a step, beside the rate of a single all-reduce and the trace of a step."""

import statistics
from collections.abc import Sequence
from typing import Any

from perf.studies.on_file import NotOnFile
from perf.studies.parallel import ddp, overlap
from perf.studies.parallel.all_reduce import rates
from perf.studies.rows import Row
from perf.units import MIB
from perf.workloads.closed_forms import best_bucket_bytes, exposed_seconds


class DataParallel:
    """Figures of one document of `study ddp`: measured rows of one size, context and number of ranks.

    Args:
        rows: the measured rows.
        all_reduce: measured rows of `study all-reduce`, of any number of ranks.
        traces: rows of `study overlap` of the same size.
    """

    def __init__(self, rows: Sequence[Any], all_reduce: Sequence[Any] = (), traces: Sequence[Any] = ()) -> None:
        """Keep the rows."""
        self.rows, self.traces = list(rows), list(traces)
        self.swept = sorted(
            (row for row in self.rows if row["strategy"] == "bucketed"), key=lambda row: row["bucket_size_mb"]
        )
        ranks = {row["world_size"] for row in self.rows}
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

    @staticmethod
    def median(row: Row, samples: str) -> float:
        """Median of a row's "step_s" or "exposed_s"."""
        return seconds(row, samples)

    def spread_s(self, *strategies: str) -> float:
        """The widest range of the samples of a step."""
        samples = [self.row(strategy)["step_s"] for strategy in strategies]
        return max(max(each) - min(each) for each in samples)

    @property
    def alone_s(self) -> float:
        """A step without communication: median over the rows of step less what communication adds."""
        return statistics.median(seconds(row, "step_s") - seconds(row, "exposed_s") for row in self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of gradients that a rank reduces in a step."""
        return int(next(row["facts"]["bytes"] for row in self.rows if "bytes" in row["facts"]))

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
        """What the fitted model gives for a row of the sweep."""
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
        """Whether the kernels that compute take longer on every rank where communication overlaps."""
        before, after = self.compute_s("naive"), self.compute_s("overlapped", "bucketed")
        return bool(before and after) and min(after) > max(before)

    def overlaps(self, *strategies: str) -> list[float]:
        """Part of the communication during which the same rank computes, every rank."""
        return [
            overlap.common(row["compute"], row["communication"]) / overlap.length(row["communication"])
            for row in self.traces
            if row["strategy"] in strategies
        ]


def seconds(row: Row, samples: str) -> float:
    """Median of a row's samples."""
    return statistics.median(row[samples])
