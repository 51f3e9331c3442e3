"""Ring collectives of N ranks: bytes sent per rank, time, and the time that bucketed data parallelism exposes.

S is the size of the whole tensor in bytes: a reduce-scatter leaves each rank S/N and an all-gather starts from S/N. W
is the bandwidth at which a rank sends. Latency is left out. Source: Patarasuk and Yuan 2009; NCCL's PERFORMANCE.md.
"""


def all_gather_bytes(num_bytes: float, num_ranks: int) -> float:
    """Bytes that each rank sends: (N - 1)/N S. A reduce-scatter sends as much."""
    return (num_ranks - 1) / num_ranks * num_bytes


def all_reduce_bytes(num_bytes: float, num_ranks: int) -> float:
    """Bytes that each rank sends in a reduce-scatter and an all-gather: 2(N - 1)/N S."""
    return 2 * all_gather_bytes(num_bytes, num_ranks)


def all_gather_seconds(num_bytes: float, num_ranks: int, bandwidth: float) -> float:
    """Time of an all-gather or reduce-scatter: (N - 1)/N S/W."""
    return all_gather_bytes(num_bytes, num_ranks) / bandwidth


def all_reduce_seconds(num_bytes: float, num_ranks: int, bandwidth: float) -> float:
    """Time of an all-reduce: 2(N - 1)/N S/W, nearly independent of the number of ranks."""
    return all_reduce_bytes(num_bytes, num_ranks) / bandwidth


def alternate_all_reduce_seconds(num_bytes: float, num_ranks: int, bandwidth: float) -> float:
    """Time of N - 1 steps in which every rank passes on the whole tensor: (N - 1) S/W, N/2 times that of a ring.

    Source: the course (Spring 2026, alternate_ring_all_reduce).
    """
    return (num_ranks - 1) * num_bytes / bandwidth


def bus_bandwidth(num_bytes: float, num_ranks: int, seconds: float) -> float:
    """Bytes per second that each rank of an all-reduce sends: 2(N - 1)/N S/t, the busbw of NCCL's tests."""
    return all_reduce_bytes(num_bytes, num_ranks) / seconds


def exposed_seconds(num_bytes: float, num_buckets: float, bandwidth: float, overhead: float) -> float:
    """Time that n equal buckets of gradients add to a step: S/(n W) + n o, for an overhead of o seconds per call.

    The backward takes as long as the transfer, so when it ends the last bucket and the overhead of all calls remain.
    Source: the course (Spring 2025, section 2.3.3).
    """
    return num_bytes / (num_buckets * bandwidth) + num_buckets * overhead


def best_bucket_bytes(num_bytes: float, bandwidth: float, overhead: float) -> float:
    """Bucket size that minimizes `exposed_seconds`: sqrt(S W o), which exposes 2 sqrt(S o / W)."""
    return (num_bytes * bandwidth * overhead) ** 0.5
