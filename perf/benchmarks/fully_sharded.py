"""A fully sharded training step over several GPUs: ours by the layers it gathers ahead, and torch's FSDP2.

mode step is the whole step; mode exposed is the excess of its forward and backward over those of an unsharded model,
sampled in turn. batch is that of each GPU, large enough that the step is bound by the GPUs and not by the host: below
4096 tokens it is not. compute_dtype is that of the gathered weights, in which torch_default, unlike torch, also reduces
gradients.
"""

from perf.benchmarks._series import _Timed, _Weighed, _WeighedThrice
from perf.harness.suite import measure_class


class FullySharded(_Timed, _Weighed, _WeighedThrice):
    """Time of a step, exposed communication, and memory at three points of a step."""

    version = "1"
    negligible = (0.02, 5e-5)
    params = (
        ["prefetch_0", "prefetch_1", "prefetch_2", "torch", "torch_default"],
        ["float32", "bfloat16"],
        ["2.7B"],
        [1024, 2048],
        [8],
        ["bf16"],
        ["compiled_blocks"],
        [2, 4],
        ["step", "exposed"],
    )
    param_names = (
        "sharding",
        "compute_dtype",
        "size",
        "context_length",
        "batch",
        "precision",
        "variant",
        "world_size",
        "mode",
    )
    workload, device, clock, cache = "fully_sharded", "cuda", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)
