"""The types of the rows in every study's document, and their check where a file is written or read.

`SCHEMAS` maps the name of a document to the type of its rows. A study writes all fields that are not `NotRequired`. An
older file may lack some; those that it has must be of these types.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NotRequired, TypedDict, get_type_hints

from perf.forms import matches, written
from perf.harness.status import Status

Row = dict[str, Any]
"""A row under construction, or the cells of a table."""

Samples = list[list[float]]
"""Seconds of every sample, a list for each process."""

Spans = list[list[float]]
"""Start and end of each span, in seconds."""


class StatusRow(TypedDict):
    """Status of a row; see `perf.harness.status`."""

    status: Status
    reason: NotRequired[str]


class AnyRow(TypedDict, total=False):
    """A row of any other document."""

    status: Status


class ModelRow(StatusRow):
    """One model in one way to run it."""

    size: str
    context: int
    precision: str
    variant: str
    attention: str
    predicted_bytes: NotRequired[int]


class PhasesRow(ModelRow):
    """Seconds of each step, phase by phase."""

    forward_s: NotRequired[list[float]]
    backward_s: NotRequired[list[float]]
    optimizer_s: NotRequired[list[float]]
    peak_bytes: NotRequired[int | None]


class CompiledModelRow(ModelRow):
    """A form of a model: its first call, and the median of the others."""

    part: str
    forward_first_s: NotRequired[float]
    forward_s: NotRequired[float]
    step_first_s: NotRequired[float]
    step_s: NotRequired[float]


class CompiledAttentionRow(StatusRow):
    """A form of attention: its first calls, and the medians of the others."""

    part: str
    seq_len: int
    d: int
    variant: str
    forward_first_s: NotRequired[float]
    forward_s: NotRequired[float]
    backward_first_s: NotRequired[float]
    backward_s: NotRequired[float]


class MemoryRow(ModelRow):
    """The course of a model's memory."""

    batch: NotRequired[int]
    d_model: NotRequired[int]
    residual_bytes: NotRequired[int]
    forward: NotRequired[dict[str, Any]]
    step: NotRequired[dict[str, Any]]


class CheckpointingRow(ModelRow):
    """A model with one way to checkpoint: every None is none."""

    batch: int
    every: int | None
    mode: str
    offload: bool
    recomputed: int
    kept_bytes: int
    flops: int
    step_s: NotRequired[list[float]]
    peak_bytes: NotRequired[int | None]


class AttentionMemoryRow(StatusRow):
    """Bytes of eager attention by the time at which they are alive."""

    seq_len: int
    d: int
    predicted: dict[str, int]
    measured: NotRequired[dict[str, int]]


class ArmRow(StatusRow):
    """An implementation of attention in one cell."""

    group: str
    batch: int
    num_heads: int
    kv_heads: NotRequired[int]  # absent from older rows, where it is num_heads
    seq_len: int
    d: int
    dtype: str
    is_causal: bool
    mode: str
    clock: str
    cache: str
    impl: str
    role: Literal["ours", "against"]
    samples_s: Samples
    flops: NotRequired[float]
    error: NotRequired[float]
    sm_mhz: NotRequired[list[float]]


class TileRow(ArmRow):
    """A candidate for the tiles of a kernel in one cell."""

    entry: str
    against: str
    is_present: bool
    registers: NotRequired[int]
    spills: NotRequired[int]
    shared_bytes: NotRequired[int]


class PairRow(StatusRow):
    """Two ways to run a training step, sampled in turn."""

    size: str
    batch: int
    ours: str
    against: str
    ours_s: Samples
    against_s: Samples


class TrainStepRow(PairRow):
    """Two ways to run a training step on one device; busy is the GPU's busy time."""

    context: int
    against_busy_s: Samples


class RankedRow(TypedDict):
    """Model, batch and number of ranks of a step."""

    size: str
    context_length: int
    precision: str
    variant: str
    batch: int
    world_size: int


class ParallelStepRow(PairRow, RankedRow):
    """Two ways to share a step over several ranks; busy is the GPU's busy share of a step."""

    ours_busy: list[float]
    against_busy: list[float]


class CaseRow(StatusRow):
    """A case on several ranks, measured as those of the suite are."""

    device: Literal["cuda", "cpu"]
    world_size: int
    error: NotRequired[float]
    facts: NotRequired[dict[str, float]]
    peak_bytes: NotRequired[int]


class AllReduceRow(CaseRow):
    """A collective."""

    megabytes: int
    samples_s: NotRequired[list[float]]


class ShardingRow(CaseRow, RankedRow):
    """A step with one way to divide the optimizer."""

    sharding: str
    samples_s: NotRequired[list[float]]


class LeaderboardStepRow(CaseRow):
    """The leaderboard's step of 2026 or a slice of it, and the closed forms of it and of the whole."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int
    context_length: int
    batch: int
    checkpoint_every: int
    precision: str
    variant: str
    attention: str
    prefetch: int
    predicted_bytes: int
    predicted_s: float
    whole_predicted_bytes: int
    whole_predicted_s: float
    samples_s: NotRequired[list[float]]


class StrategyRow(CaseRow, RankedRow):
    """A step with one strategy of data parallelism, whole, and what communication adds to it."""

    strategy: str
    bucket_size_mb: float
    step_s: NotRequired[list[float]]
    exposed_s: NotRequired[list[float]]


class OverlapRow(RankedRow):
    """The spans in which one rank computes and communicates."""

    strategy: str
    """A strategy of data parallelism, or fully_sharded/WAY."""

    rank: int
    bucket_size_mb: NotRequired[float]
    compute: Spans
    communication: Spans


class EquivalenceRow(TypedDict):
    """Distance of the weights of several ranks from those of one."""

    strategy: str
    world_size: int
    equal_on_ranks: bool
    difference: float


class NoiseRow(TypedDict):
    """Medians of two arms that are the same code."""

    design: str
    process: int
    case: str
    allocation: NotRequired[int]
    a: float
    b: float


SCHEMAS: dict[str, Any] = {
    "end-to-end": PhasesRow,
    "warm-up": PhasesRow,
    "kernels": ModelRow,
    "memory": MemoryRow,
    "checkpointing": CheckpointingRow,
    "compile-model": CompiledModelRow,
    "compile-attention": CompiledAttentionRow,
    "attention": ArmRow,
    "attention-gqa": ArmRow,
    "attention-aside": ArmRow,
    "attention-random": ArmRow,
    "tiles": TileRow,
    "attention-memory": AttentionMemoryRow,
    "train-step": TrainStepRow,
    "parallel-step": ParallelStepRow,
    "all-reduce": AllReduceRow,
    "ddp": StrategyRow,
    "sharding": ShardingRow,
    "leaderboard-2026": LeaderboardStepRow,
    "fsdp": ParallelStepRow,
    "overlap": OverlapRow,
    "ddp-equivalence": EquivalenceRow,
    "noise": NoiseRow,
}
"""Row types by name of the document. `clock` holds cells as they are shown, and the rows of `precision` differ by part:
neither has a type."""


def faults(name: str, rows: Iterable[Any], *, whole: bool) -> Iterator[str]:
    """Yield the faults of rows of the document `name`; with `whole` a missing field is one."""
    schema = SCHEMAS.get(name, AnyRow)
    kinds, required = get_type_hints(schema), schema.__required_keys__
    for number, row in enumerate(rows):
        for field in sorted(required - row.keys()) if whole else ():
            yield f"{name}, row {number}: {field} is missing"
        for field in kinds.keys() & row.keys():
            if not matches(row[field], kinds[field]):
                yield f"{name}, row {number}: {field} is {row[field]!r:.40}; allowed: {written(kinds[field])}"


def grouped(rows: Iterable[dict[str, Any]], *names: str) -> Iterator[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Yield the rows with the same values of `names`, in the order of their first row."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from groups.items()


def differing(rows: Sequence[Row], names: Sequence[str], *, always: Sequence[str] = ()) -> list[str]:
    """Return those of `names` of which the rows have several values, and those of `always`."""
    return [name for name in names if name in always or len({row.get(name) for row in rows}) > 1]
