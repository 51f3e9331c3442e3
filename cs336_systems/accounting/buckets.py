"""The course's model of bucketed data parallelism (Spring 2025, section 2.3.3): what communication adds to a step.

Gradients of s bytes in n equal buckets, sent at w bytes a second with o seconds of overhead a call, while the backward
takes as long as their transfer. When it ends, the last bucket has yet to go, and the overheads of all have piled up.
"""


def exposed_seconds(num_bytes: float, num_buckets: float, bandwidth: float, overhead: float) -> float:
    """s / (n w) + n o."""
    return num_bytes / (num_buckets * bandwidth) + num_buckets * overhead


def best_bucket_bytes(num_bytes: float, bandwidth: float, overhead: float) -> float:
    """sqrt(s w o), at which `exposed_seconds` is least: 2 sqrt(s o / w)."""
    return (num_bytes * bandwidth * overhead) ** 0.5
