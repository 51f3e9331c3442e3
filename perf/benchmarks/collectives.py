"""All-reduce of float32 over the ranks of one machine: NCCL between GPUs, gloo between processes on the CPU."""

from perf.benchmarks._series import _Timed
from perf.harness.suite import measure_class


class AllReduce(_Timed):
    """All-reduce over NCCL; a world size that the machine lacks is n/a. Megabytes are 10^6 bytes."""

    version = "1"
    negligible = (0.05, 5e-6)
    params = ([2, 4, 6], [1, 10, 100, 1000])
    param_names = ("world_size", "megabytes")
    workload, device, clock, cache = "collectives", "cuda", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)


class AllReduceGloo(_Timed):
    """All-reduce over gloo, one thread a rank."""

    version = "1"
    negligible = (0.05, 5e-6)
    params = ([2, 4, 6], [1, 10, 100, 1000])
    param_names = ("world_size", "megabytes")
    workload, device, clock, cache = "collectives", "cpu", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)
