"""The Transformer from small to 2.7B, batch 4: a step's phases, and the variants of a step."""

from perf.benchmarks._series import _Timed, _Weighed
from perf.harness.suite import measure_class


class Transformer(_Timed, _Weighed):
    """Each phase of an eager step, by wall time and by device-busy time; eager attention.

    Their difference is the cost of the host. Peak memory of forward is that of inference, of step that of training.
    """

    version = "1"
    negligible = (0.01, 1e-5)
    params = (
        ["small", "medium", "large", "xl", "2.7B"],
        [128, 256, 512, 1024],
        ["fp32", "bf16"],
        ["eager"],
        ["reference"],
        ["forward", "backward", "optimizer", "step"],
        ["gpu_wall", "device_busy"],
    )
    param_names = ("size", "context_length", "precision", "variant", "attention", "mode", "clock")
    workload, device, cache = "transformer", "cuda", "warm"

    def setup_cache(self):
        return measure_class(self)


class TransformerVariants(_Timed, _Weighed):
    """A whole step in bfloat16, eager, compiled, and as a CUDA graph; with our attention and with PyTorch's.

    bf16 is autocast; bf16_weights computes the same without its casts.
    """

    version = "1"
    negligible = (0.01, 1e-5)
    params = (
        ["small", "medium", "large", "xl", "2.7B"],
        [512, 1024],
        ["bf16", "bf16_weights"],
        ["eager", "compiled_blocks", "cuda_graph", "compiled_cuda_graph"],
        ["triton", "sdpa"],
        ["step"],
    )
    param_names = ("size", "context_length", "precision", "variant", "attention", "mode")
    workload, device, clock, cache = "transformer", "cuda", "gpu_wall", "warm"

    def setup_cache(self):
        return measure_class(self)


class TransformerCompiled(_Timed):
    """A whole step with the whole model compiled at once: ten times the compilation, so only small models."""

    version = "1"
    negligible = (0.01, 1e-5)
    params = (["small", "medium"], [512, 1024], ["bf16"], ["compiled"], ["triton", "sdpa"], ["step"])
    param_names = ("size", "context_length", "precision", "variant", "attention", "mode")
    workload, device, clock, cache = "transformer", "cuda", "gpu_wall", "warm"

    def setup_cache(self):
        return measure_class(self)
