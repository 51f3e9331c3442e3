"""Attention: the benchmarks of the course and of the papers, as dense grids."""

from perf.benchmarks._series import _Timed, _Weighed
from perf.harness.suite import measure_class


class FlashAttention(_Timed, _Weighed):
    """Batch 1, one head, causal; `reference` is eager PyTorch, `sdpa` the backend that torch chooses for the shape."""

    version = "2"
    negligible = (0.01, 3e-7)
    params = (
        [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
        [16, 32, 64, 128],
        ["bfloat16", "float32"],
        ["forward", "backward", "forward_backward"],
        ["triton", "reference", "sdpa"],
    )
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cuda", "cuda_events", "cold"

    def setup_cache(self):
        return measure_class(self)


class ShortAttention(_Timed):
    """`FlashAttention` at shapes where a kernel is shorter than its launch: a CUDA graph of calls, operands in L2."""

    version = "1"
    negligible = (0.02, 1e-7)
    params = (
        [128, 256, 512, 1024],
        [64, 128],
        ["bfloat16"],
        ["forward", "forward_backward"],
        ["triton", "reference", "sdpa"],
    )
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cuda", "cuda_graph", "warm"

    def setup_cache(self):
        return measure_class(self)


class PyTorchAttention(_Timed, _Weighed):
    """Eager attention, batch 8, no heads, full: the course's PyTorch benchmark, without and with `torch.compile`."""

    version = "1"
    negligible = (0.01, 3e-7)
    params = (
        [8],
        [256, 1024, 4096, 8192, 16384],
        [16, 32, 64, 128],
        [False],
        ["float32"],
        ["forward", "backward"],
        ["reference", "reference_compiled"],
    )
    param_names = ("batch", "seq_len", "d", "is_causal", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cuda", "cuda_events", "cold"

    def setup_cache(self):
        return measure_class(self)


class PyTorchAttentionSaved(_Weighed):
    """Memory in use before the backward of `PyTorchAttention`: the inputs and what the forward keeps for it."""

    version = "1"
    negligible = (0.01, 3e-7)
    params = (
        [8],
        [256, 1024, 4096, 8192, 16384],
        [16, 32, 64, 128],
        [False],
        ["float32"],
        ["before_backward"],
        ["reference", "reference_compiled"],
    )
    param_names = ("batch", "seq_len", "d", "is_causal", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cuda", "cuda_events", "cold"

    def setup_cache(self):
        return measure_class(self)


class MultiHeadAttention(_Timed, _Weighed):
    """The grid of the FlashAttention papers: 32768 tokens, 32 heads of 64 or 16 of 128; PyTorch's backends by name."""

    version = "1"
    negligible = (0.01, 3e-7)
    params = (
        [32768],
        [2048],
        [512, 1024, 2048, 4096, 8192, 16384],
        [64, 128],
        [True, False],
        ["bfloat16"],
        ["forward", "backward"],
        ["triton", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex"],
    )
    param_names = ("tokens", "d_model", "seq_len", "d", "is_causal", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cuda", "cuda_events", "cold"

    def setup_cache(self):
        return measure_class(self)


class Leaderboard(_Timed, _Weighed):
    """The CS336 leaderboard of 2025: forward, sum and backward of 16 causal heads, gradients accumulating.

    Its rules ask for `torch.compile(FlashAttention.apply)`: that is triton_compiled; triton is the same call without.
    """

    version = "1"
    negligible = (0.01, 3e-7)
    params = (
        [16],
        [16384],
        [64],
        ["bfloat16"],
        ["triton", "triton_compiled", "sdpa_cudnn", "sdpa_flash", "flex"],
    )
    param_names = ("num_heads", "seq_len", "d", "dtype", "impl")
    workload, device, clock, cache = "attention_leaderboard", "cuda", "cuda_events", "cold"

    def setup_cache(self):
        return measure_class(self)


class FlashVariants(_Timed, _Weighed):
    """The steps of the course's implementation, batch 1, causal: eager, tiled PyTorch, a compiled backward, Triton."""

    version = "1"
    negligible = (0.01, 3e-7)
    params = (
        [1024, 4096],
        [64],
        ["bfloat16", "float32"],
        ["backward", "forward_backward"],
        [
            "pytorch",
            "pytorch_compiled_backward",
            "triton",
            "triton_forward_compiled_backward",
            "reference",
            "reference_compiled",
            "sdpa",
        ],
    )
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cuda", "cuda_events", "cold"

    def setup_cache(self):
        return measure_class(self)


class FirstCall(_Timed):
    """Time to the first result: a fresh process, empty compiler caches, forward and backward."""

    version = "1"
    negligible = (0.1, 0.1)
    params = (
        [4096],
        [64],
        ["bfloat16"],
        ["forward_backward"],
        [
            "triton",
            "triton_compiled",
            "pytorch_compiled_backward",
            "reference",
            "reference_compiled",
            "sdpa_flash",
            "sdpa_cudnn",
            "flex",
        ],
    )
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cuda", "first_call", "cold"

    def setup_cache(self):
        return measure_class(self)


class FirstCallShapes(_Timed):
    """`FirstCall` of our kernels by head dimension, dtype, and whether the heads fill a GPU."""

    version = "1"
    negligible = (0.1, 0.1)
    params = ([1, 32], [4096], [16, 64, 128], ["bfloat16", "float32"], ["forward_backward"], ["triton"])
    param_names = ("batch", "seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "attention", "cuda", "first_call", "cold"

    def setup_cache(self):
        return measure_class(self)
