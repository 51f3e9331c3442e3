"""Optimizer state replicated or sharded over the ranks: a step's time, and memory at three points of it."""

from perf.benchmarks._series import _Timed, _Weighed, _WeighedThrice
from perf.harness.suite import measure_class


class ShardedOptimizer(_Timed, _Weighed, _WeighedThrice):
    """No sharding, ours with 3P and with 2P elements sent, torch's ZeroRedundancyOptimizer; batch is of each GPU."""

    version = "1"
    negligible = (0.02, 5e-5)
    params = (
        ["none", "sharded", "sharded_reducing", "torch"],
        ["xl"],
        [512],
        [16],
        ["bf16"],
        ["compiled_blocks"],
        [2, 4],
    )
    param_names = ("sharding", "size", "context_length", "batch", "precision", "variant", "world_size")
    workload, device, clock, cache = "sharded_optimizer", "cuda", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)
