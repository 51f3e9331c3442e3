"""A CPU-sized slice of every class, by the wall clock, for machines without a GPU."""

from perf.benchmarks._series import _Timed
from perf.harness.suite import measure_class, reported_fact


class SmokeAttention(_Timed):
    """`attention.FlashAttention` and `FlashVariants` on a CPU, without the Triton kernels."""

    version = "2"
    negligible = (0.1, 1e-4)
    params = ([128, 512], [64], ["float32"], ["forward", "forward_backward"], ["pytorch", "reference", "sdpa"])
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cpu", "wall", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeControls(_Timed):
    """`controls.Controls` on a CPU."""

    version = "1"
    is_control = True
    negligible = (0.1, 1e-4)
    params = (["matmul", "copy", "launch"],)
    param_names = ("control",)
    workload, device, clock, cache = "controls", "cpu", "wall", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeMultiHeadAttention(_Timed):
    """`attention.MultiHeadAttention` and `PyTorchAttention` on a CPU: 256 tokens, two heads."""

    version = "1"
    negligible = (0.1, 1e-4)
    params = (
        [256],
        [64],
        [128],
        [32],
        [False],
        ["float32"],
        ["backward"],
        ["pytorch", "sdpa_flash"],
    )
    param_names = ("tokens", "d_model", "seq_len", "d", "is_causal", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cpu", "wall", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeLeaderboard(_Timed):
    """`attention.Leaderboard` on a CPU: two heads."""

    version = "1"
    negligible = (0.1, 1e-4)
    params = (
        [2],
        [256],
        [32],
        ["float32"],
        ["pytorch"],
    )
    param_names = ("num_heads", "seq_len", "d", "dtype", "impl")
    workload, device, clock, cache = "attention_leaderboard", "cpu", "wall", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeFirstCall(_Timed):
    """`attention.FirstCall` on a CPU, of an implementation that compiles nothing."""

    version = "1"
    negligible = (0.25, 0.1)
    params = ([128], [32], ["float32"], ["forward_backward"], ["pytorch"])
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cpu", "first_call", "cold"

    def setup_cache(self):
        return measure_class(self)


class SmokeTransformer(_Timed):
    """`transformer.Transformer` and `TransformerVariants` on a CPU: two layers of width 64."""

    version = "1"
    negligible = (0.1, 1e-4)
    params = (
        ["tiny"],
        [32],
        ["fp32", "bf16"],
        ["eager"],
        ["reference", "pytorch"],
        ["forward", "backward", "optimizer", "step"],
    )
    param_names = ("size", "context_length", "precision", "variant", "attention", "mode")
    workload, device, clock, cache = "transformer", "cpu", "wall", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeAttentionCall(_Timed):
    """`host.AttentionCall` on a CPU: 16 and 32 tokens, where the call is mostly Python."""

    version = "1"
    negligible = (0.05, 2e-6)
    params = ([16, 32], [16], ["float32"], ["forward", "forward_backward"], ["flash_attention", "pytorch", "reference"])
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "host", "cpu", "host", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeTrainingCall(_Timed):
    """`host.TrainingCall` on a CPU: two layers of width 64."""

    version = "1"
    negligible = (0.1, 1e-4)
    params = (["tiny"], [32], ["fp32"], ["eager"], ["reference"], ["forward", "step"])
    param_names = ("size", "context_length", "precision", "variant", "attention", "mode")
    workload, device, clock, cache = "host", "cpu", "host", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeCompiledStep(_Timed):
    """`host.CompiledStep` on a CPU, of a step that compiles nothing."""

    version = "1"
    negligible = (0.25, 0.1)
    params = (["tiny"], [32], ["fp32"], ["eager"], ["reference"], ["step"])
    param_names = ("size", "context_length", "precision", "variant", "attention", "mode")
    workload, device, clock, cache = "compiled_step", "cpu", "first_call", "cold"

    def setup_cache(self):
        return measure_class(self)

    def track_graphs(self, results, *params):
        return reported_fact(self, results, "graphs", *params)

    track_graphs.unit = "count"


class SmokeCollectives(_Timed):
    """`collectives.AllReduce` on a CPU: two ranks over gloo."""

    version = "1"
    negligible = (0.1, 1e-4)
    params = ([2], [1])
    param_names = ("world_size", "megabytes")
    workload, device, clock, cache = "collectives", "cpu", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeDataParallel(_Timed):
    """`data_parallel.DataParallel` on a CPU: two layers of width 64 on two ranks over gloo."""

    version = "2"
    negligible = (0.1, 1e-4)
    params = (
        ["naive", "flat", "overlapped", "bucketed", "torch"],
        [0.1],
        ["tiny"],
        [32],
        [4],
        ["fp32"],
        ["eager"],
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
    workload, device, clock, cache = "data_parallel", "cpu", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeShardedOptimizer(_Timed):
    """`sharded_optimizer.ShardedOptimizer` on a CPU: two layers of width 64 on two ranks over gloo."""

    version = "2"
    negligible = (0.1, 1e-4)
    params = (["none", "sharded", "sharded_reducing", "torch"], ["tiny"], [32], [4], ["fp32"], ["eager"], [2])
    param_names = ("sharding", "size", "context_length", "batch", "precision", "variant", "world_size")
    workload, device, clock, cache = "sharded_optimizer", "cpu", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeFullySharded(_Timed):
    """`fully_sharded.FullySharded` on a CPU: two layers of width 64 on two ranks over gloo."""

    version = "1"
    negligible = (0.1, 1e-4)
    params = (
        ["prefetch_0", "prefetch_2", "torch"],
        ["float32"],
        ["tiny"],
        [32],
        [4],
        ["fp32"],
        ["eager"],
        [2],
        ["step"],
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
    workload, device, clock, cache = "fully_sharded", "cpu", "ranks", "warm"

    def setup_cache(self):
        return measure_class(self)


class SmokeLinearCrossEntropy(_Timed):
    """`linear_cross_entropy.LinearCrossEntropy` on a CPU: 64 tokens, an odd vocabulary of 259."""

    version = "1"
    negligible = (0.1, 1e-4)
    params = ([64], [32], [259], ["float32"], ["forward", "forward_backward"], ["fused", "eager"])
    param_names = ("tokens", "d_model", "vocab_size", "dtype", "mode", "impl")
    workload, device, clock, cache = "linear_cross_entropy", "cpu", "wall", "warm"

    def setup_cache(self):
        return measure_class(self)
