"""GPUs for which kernels are compiled: what a commit's choices of kernels and tiles ask of a GPU that is not here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A GPU, by its data sheet."""

    name: str
    capability: int
    """Compute capability without its point: 90."""

    multiprocessors: int
    shared_bytes: int
    """Maximum shared memory of a block."""

    l2_bytes: int


TARGETS = {
    "9.0": Target("NVIDIA H200", 90, 132, 227 * 2**10, 50 * 2**20),
    "8.9": Target("NVIDIA L40S", 89, 142, 99 * 2**10, 96 * 2**20),
    "8.0": Target("NVIDIA A100", 80, 108, 163 * 2**10, 40 * 2**20),
}
"""By compute capability."""

DEFAULT = "9.0"
"""The capability of the machines in perf/records."""
