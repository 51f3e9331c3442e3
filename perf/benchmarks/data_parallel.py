"""A training step over several GPUs: the four strategies and torch's DistributedDataParallel.

mode step is the whole step; mode exposed is its excess over the same step without communication, sampled in turn.
batch is that of each GPU: large enough that the step is bound by the GPUs and not by the host, and small enough that
xl fits into 80 GB beside the step without communication.
"""

from perf.benchmarks._series import _Timed, _Weighed
from perf.harness.suite import measure_class, reported_fact


class DataParallel(_Timed, _Weighed):
    """Every strategy, buckets of 25 MiB."""

    version = "1"
    negligible = (0.02, 5e-5)
    params = (
        ["naive", "flat", "overlapped", "bucketed", "torch"],
        [25],
        ["large", "xl"],
        [1024],
        [8],
        ["bf16"],
        ["compiled_blocks"],
        [2, 4],
        ["step", "exposed"],
    )
    param_names = (
        "strategy",
        "bucket_size_mb",
        "size",
        "context_length",
        "batch",
        "precision",
        "variant",
        "world_size",
        "mode",
    )
    workload, device, clock, cache = "data_parallel", "cuda", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)

    def track_parameter_bytes(self, results, *params):
        return reported_fact(self, results, "parameter_bytes", *params)

    def track_optimizer_bytes(self, results, *params):
        return reported_fact(self, results, "optimizer_bytes", *params)

    track_parameter_bytes.unit = track_optimizer_bytes.unit = "bytes"


class Buckets(_Timed):
    """Bucket sizes in MiB: ours, which closes a bucket before it exceeds that, and torch's, which closes it after."""

    version = "1"
    negligible = (0.02, 5e-5)
    params = (
        ["bucketed", "torch"],
        [1, 10, 25, 100, 1000],
        ["xl"],
        [1024],
        [8],
        ["bf16"],
        ["compiled_blocks"],
        [2],
        ["step", "exposed"],
    )
    param_names = (
        "strategy",
        "bucket_size_mb",
        "size",
        "context_length",
        "batch",
        "precision",
        "variant",
        "world_size",
        "mode",
    )
    workload, device, clock, cache = "data_parallel", "cuda", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)
