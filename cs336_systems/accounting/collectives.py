"""Collectives of N ranks on a ring: what each rank sends, and how long it takes.

S bytes are the whole tensor, of which a reduce-scatter leaves a rank one N-th and an all-gather begins with as much.
W is what a rank can send in a second; latency is left out. Source: Patarasuk and Yuan 2009; NCCL's PERFORMANCE.md.
"""


def all_gather_bytes(num_bytes: float, num_ranks: int) -> float:
    """(N - 1)/N S sent by each rank; a reduce-scatter sends as much."""
    return (num_ranks - 1) / num_ranks * num_bytes


def all_reduce_bytes(num_bytes: float, num_ranks: int) -> float:
    """2(N - 1)/N S: a reduce-scatter, then an all-gather."""
    return 2 * all_gather_bytes(num_bytes, num_ranks)


def all_gather_seconds(num_bytes: float, num_ranks: int, bandwidth: float) -> float:
    """(N - 1)/N S/W."""
    return all_gather_bytes(num_bytes, num_ranks) / bandwidth


def all_reduce_seconds(num_bytes: float, num_ranks: int, bandwidth: float) -> float:
    """2(N - 1)/N S/W: nearly the same for any number of ranks."""
    return all_reduce_bytes(num_bytes, num_ranks) / bandwidth


def alternate_all_reduce_seconds(num_bytes: float, num_ranks: int, bandwidth: float) -> float:
    """(N - 1) S/W: N - 1 steps in which every rank passes on the whole tensor; N/2 times as long as a ring's.

    Source: the course (Spring 2026, alternate_ring_all_reduce).
    """
    return (num_ranks - 1) * num_bytes / bandwidth


def bus_bandwidth(num_bytes: float, num_ranks: int, seconds: float) -> float:
    """Of an all-reduce, what NCCL's tests call busbw: bytes that a link carries in a second, 2(N - 1)/N S/t."""
    return all_reduce_bytes(num_bytes, num_ranks) / seconds
