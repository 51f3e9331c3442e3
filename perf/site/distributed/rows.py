"""Rows of the Distributed page: strategies, bucket sweeps, collectives, sharded states and fully sharded steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from perf.harness.records import CaseResult
from perf.site.estimate import Estimate, estimate, shortest
from perf.site.newest import NewestCell
from perf.workloads import closed_forms
from perf.workloads.fully_sharded import PREFETCH, TORCHS
from perf.workloads.rank_step import POINTS
from perf.workloads.workload import Unavailable

STRATEGIES = ("data_parallel.DataParallel", "smoke.SmokeDataParallel")
SWEEPS = ("data_parallel.Buckets",)
COLLECTIVES = {"collectives.AllReduce": "NCCL", "collectives.AllReduceGloo": "gloo", "smoke.SmokeCollectives": "gloo"}
"""Backends by class."""

SHARDING = ("sharded_optimizer.ShardedOptimizer", "smoke.SmokeShardedOptimizer")
FULLY_SHARDED = ("fully_sharded.FullySharded", "smoke.SmokeFullySharded")
CLASSES = (*STRATEGIES, *SWEEPS, *COLLECTIVES, *SHARDING, *FULLY_SHARDED)

BASELINE = "torch"
OURS_SWEPT = "bucketed"
"""Strategy that the course's model is fitted to. torch does not report its number of buckets."""

FLOAT32_STATES = ("fp32", "tf32", "bf16")
"""Precisions that hold weights, gradients and moments in float32, as the closed forms do."""


class Where(NamedTuple):
    """Setting shared by the rows of a group."""

    size: str
    context_length: int
    batch: int
    """Batch size of each rank."""

    precision: str
    variant: str
    world_size: int


@dataclass
class Stepped:
    """Step and exposed communication of one way to share a step."""

    cells: dict[str, NewestCell] = field(default_factory=dict, kw_only=True)
    """Cells by mode (step, exposed)."""

    def result(self, mode: str) -> CaseResult | None:
        """Return a mode's result, at the newest commit that has one."""
        cell = self.cells.get(mode)
        return cell.result if cell else None

    @property
    def commits(self) -> list[str]:
        """Hashes of the commits of the modes."""
        return list(dict.fromkeys(cell.commit for cell in self.cells.values()))

    @property
    def step(self) -> Estimate | None:
        """Median time of the slowest rank."""
        return estimate(self.result("step"))

    @property
    def exposed(self) -> Estimate | None:
        """Time of the step minus that without communication. Noise can make it negative."""
        return estimate(self.result("exposed"))

    @property
    def share(self) -> float | None:
        """Exposed communication, of the step; None where the two are of different commits."""
        exposed, step = self.exposed, self.step
        return exposed.median / step.median if exposed and step and step.median and len(self.commits) == 1 else None

    def fact(self, name: str) -> float | None:
        """Return a fact of either mode."""
        found = [
            result.facts[name] for mode in ("step", "exposed") if (result := self.result(mode)) and name in result.facts
        ]
        return found[0] if found else None

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory of the step."""
        result = self.result("step")
        return result.peak_bytes if result and result.status == "ok" else None


@dataclass
class Strategy(Stepped):
    """One strategy of data parallelism at one bucket size."""

    name: str
    bucket_size_mb: float

    @property
    def bucket_bytes(self) -> float | None:
        """Mean size of the buckets that it sent; None of torch's."""
        sent, calls = self.fact("bytes"), self.fact("calls")
        return sent / calls if sent and calls else None


@dataclass(frozen=True)
class Group:
    """Strategies, or bucket sizes, of one model on one number of ranks."""

    where: Where
    strategies: Sequence[Strategy]

    @property
    def shortest(self) -> list[Strategy]:
        """Strategy with the shortest step, and after it those that are not distinguishable from it."""
        steps = {place: one.step for place, one in enumerate(self.strategies) if one.step}
        return [self.strategies[place] for place in shortest(steps)]

    @property
    def fastest(self) -> Strategy | None:
        """Strategy whose step is shorter than that of every other; None where intervals touch."""
        return self.shortest[0] if len(self.shortest) == 1 else None

    @property
    def baseline(self) -> Estimate | None:
        """torch's own step."""
        return next((one.step for one in self.strategies if one.name == BASELINE and one.step), None)


@dataclass(frozen=True)
class Model:
    """The course's model of exposed communication, s / (n w) + n o, fitted to a sweep."""

    num_bytes: float
    bandwidth: float
    overhead: float
    measured: tuple[float, float]
    """Smallest and largest mean bucket size in bytes. The model does not extrapolate."""

    def exposed(self, bucket_bytes: float) -> float:
        """Seconds, with buckets of this size."""
        return closed_forms.exposed_seconds(self.num_bytes, self.num_bytes / bucket_bytes, self._fit)

    @property
    def best_bucket_bytes(self) -> float | None:
        """Optimal bucket size; None outside the measured sizes."""
        best = closed_forms.best_bucket_bytes(self.num_bytes, self._fit)
        return best if self.measured[0] <= best <= self.measured[1] else None

    @property
    def _fit(self) -> tuple[float, float]:
        return self.bandwidth, self.overhead


@dataclass(frozen=True)
class Collective:
    """An all-reduce of one size."""

    cell: NewestCell
    backend: str
    world_size: int
    megabytes: int
    time: Estimate
    algorithm_bandwidth: float
    bus_bandwidth: float
    """Bytes per second that each GPU sends, and receives, in a ring; its links' rate in one direction bounds it."""


@dataclass
class Shard(Stepped):
    """One way to hold the optimizer's state."""

    where: Where
    name: str

    def predicted(self, point: str) -> float | None:
        """Bytes by the closed form: of weights when the model is made, then of weights, gradients and moments.

        Before the step too, since every step but the first finds its moments. None where there is no closed form.
        """
        if self.where.precision not in FLOAT32_STATES:
            return None
        try:
            parameters = closed_forms.parameters(self.where.size)
            states = closed_forms.peak_state_bytes(self.where.size, self.where.world_size, self.name)
        except (KeyError, Unavailable):
            return None
        if point == "optimizer_bytes":
            return 8 * parameters / (1 if self.name == "none" else self.where.world_size)
        return 4 * parameters if point == "after_init_bytes" else states


@dataclass
class FullyShard(Stepped):
    """A step whose parameters, gradients and moments are all divided over the ranks."""

    where: Where
    name: str
    compute_dtype: str
    """Dtype of the gathered weights, and of the gradients that ours sends."""

    @property
    def reduce_dtype(self) -> str:
        """Dtype in which torch reduces gradients, which ours sums in float32."""
        return "float32" if self.name == TORCHS[0] else self.compute_dtype

    def predicted(self, fact: str) -> float | None:
        """Return a fact by the closed form of ours: bytes moved, or states before and after a step."""
        size, ranks = self.where.size, self.where.world_size
        try:
            if fact == "gathered_bytes":
                return closed_forms.gathered_bytes(size, ranks, self.compute_dtype, PREFETCH[self.name])
            if fact == "scattered_bytes":
                return closed_forms.scattered_bytes(size, ranks, self.compute_dtype)
            return closed_forms.fully_sharded_bytes(size, ranks) if fact != POINTS[0] else None
        except (KeyError, Unavailable):
            return None


def groups_of(cells: Iterable[NewestCell]) -> list[Group]:
    """Group cells of `STRATEGIES` or `SWEEPS` by model and number of ranks, in the grid's order."""
    groups: dict[Where, dict[tuple[str, float], Strategy]] = {}
    for cell in cells:
        params = cell.result.params
        key = params["strategy"], params["bucket_size_mb"]
        strategy = groups.setdefault(_where(params), {}).setdefault(key, Strategy(*key))
        strategy.cells[params["mode"]] = cell
    return [Group(where, list(strategies.values())) for where, strategies in groups.items()]


def model_of(sweep: Group) -> Model | None:
    """Fitted to our own buckets; None without three numbers of them."""
    points = [
        (sent, calls, one.exposed.median)
        for one in sweep.strategies
        if one.name == OURS_SWEPT and one.exposed and (sent := one.fact("bytes")) and (calls := one.fact("calls"))
    ]
    fit = closed_forms.fit_buckets(points)
    sizes = [num_bytes / calls for num_bytes, calls, _ in points]
    return Model(points[0][0], *fit, (min(sizes), max(sizes))) if fit else None


def collectives_of(cells: Mapping[str, Sequence[NewestCell]]) -> list[Collective]:
    """Return the collectives with a time, in the grid's order."""
    found = []
    for benchmark, backend in COLLECTIVES.items():
        for cell in cells.get(benchmark, ()):
            time, params = estimate(cell.result), cell.result.params
            if time and time.median > 0 and "bytes" in cell.result.facts:
                both = closed_forms.bandwidths(cell.result.facts["bytes"], params["world_size"], time.median)
                found.append(Collective(cell, backend, params["world_size"], params["megabytes"], time, *both))
    return found


def torchs_of(rows: Sequence[FullyShard]) -> FullyShard | None:
    """Return torch's step beside ours: that which reduces gradients in the dtype in which ours sends them, if timed."""
    timed = {row.name: row for row in rows if row.step}
    return next((timed[name] for name in reversed(TORCHS) if name in timed), None)


def shards_of(cells: Iterable[NewestCell]) -> list[list[Shard]]:
    """Ways to shard of each model and number of ranks, side by side."""
    groups: dict[Where, list[Shard]] = {}
    for cell in cells:
        params = cell.result.params
        where = _where(params)
        groups.setdefault(where, []).append(Shard(where, params["sharding"], cells={"step": cell}))
    return list(groups.values())


def fully_sharded_of(cells: Iterable[NewestCell]) -> list[list[FullyShard]]:
    """Ways to shard a whole step of each model, number of ranks and dtype, side by side."""
    groups: dict[tuple[Where, str], dict[str, FullyShard]] = {}
    for cell in cells:
        params = cell.result.params
        where, name, dtype = _where(params), params["sharding"], params["compute_dtype"]
        row = groups.setdefault((where, dtype), {}).setdefault(name, FullyShard(where, name, dtype))
        row.cells[params["mode"]] = cell
    return [list(rows.values()) for rows in groups.values()]


def _where(params: Mapping[str, Any]) -> Where:
    return Where(*(params[name] for name in Where._fields))
