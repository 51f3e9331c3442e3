"""Closed forms of `cs336_systems.accounting` for measured rows, shared by studies and pages."""

from collections.abc import Sequence
from typing import Any

from perf.workloads import measured

COMPUTE_BYTES = {"float32": 4, "bfloat16": 2}


def bandwidths(num_bytes: float, world_size: int, seconds: float) -> tuple[float, float]:
    """Return algbw and busbw of an all-reduce, bytes per second."""
    return num_bytes / seconds, measured("accounting.collectives", "bus_bandwidth")(num_bytes, world_size, seconds)


def fit_buckets(points: Sequence[tuple[float, float, float]]) -> tuple[float, float] | None:
    """Fit the bandwidth (bytes a second) and overhead (seconds a call) of `accounting.collectives` to a sweep.

    `points` are bytes, calls and seconds of exposed communication. Returns None for fewer than three numbers of calls.
    A term that the sweep does not show is zero: an infinite bandwidth, or no overhead.
    """
    import numpy
    from scipy.optimize import nnls

    if len({calls for _, calls, _ in points}) < 3:
        return None
    terms = numpy.array([[num_bytes / calls, calls] for num_bytes, calls, _ in points])
    exposed = numpy.array([max(0.0, seconds) for *_, seconds in points])
    scale = terms.max(axis=0)
    (inverse, overhead), _ = nnls(terms / scale, exposed)
    return (float(scale[0] / inverse) if inverse else float("inf")), float(overhead / scale[1])


def exposed_seconds(num_bytes: float, num_buckets: float, fit: tuple[float, float]) -> float:
    """Return the time that communication adds to a step by the course's model."""
    return measured("accounting.collectives", "exposed_seconds")(num_bytes, num_buckets, *fit)


def best_bucket_bytes(num_bytes: float, fit: tuple[float, float]) -> float:
    """Return the bucket size that adds the least time by that model."""
    return measured("accounting.collectives", "best_bucket_bytes")(num_bytes, *fit)


def parameters(size: str) -> int:
    """Return the number of parameters of a model size. Raises `KeyError` for an unknown size."""
    return measured("accounting.compute", "parameters")(config_of(size))


def config_of(size: str) -> Any:
    """Return the `ModelConfig` of a size."""
    return measured("configs", "MODEL_CONFIGS")[size]


def peak_state_bytes(size: str, world_size: int, sharding: str) -> float:
    """Return a rank's bytes of parameters, gradients and moments at the peak of a step: 16P, or 8P + 8P/n sharded.

    All gradients exist there, also those that are then reduced to their owners alone.
    """
    divided = "nothing" if sharding == "none" else "moments"
    return measured("accounting.sharding", "state_bytes")(parameters(size), world_size, divided)


def gathered_bytes(size: str, world_size: int, compute_dtype: str, prefetch: int) -> int:
    """Return the bytes of weights that `FullyShardedDataParallel` gathers in a step."""
    return measured("accounting.fully_sharded", "gathered_bytes")(
        config_of(size), world_size, COMPUTE_BYTES[compute_dtype], prefetch
    )


def scattered_bytes(size: str, world_size: int, compute_dtype: str) -> int:
    """Return the bytes of gradients that it averages at their owners in a step."""
    return measured("accounting.fully_sharded", "scattered_bytes")(
        config_of(size), world_size, COMPUTE_BYTES[compute_dtype]
    )


def fully_sharded_bytes(size: str, world_size: int) -> int:
    """Return a rank's bytes of parameters, gradients and moments, without what is whole for a moment."""
    return measured("accounting.fully_sharded", "lasting_bytes")(config_of(size), world_size) * 4 // 3
