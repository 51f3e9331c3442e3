"""The head of a language model with its loss, at vocabularies whose logits are most of a step's memory."""

from perf.benchmarks._series import _Timed, _Weighed
from perf.harness.suite import measure_class


class LinearCrossEntropy(_Timed, _Weighed):
    """Ours in chunks, eager, compiled, and PyTorch's own in chunks; vocabularies of GPT-2, which is odd, and Qwen.

    forward is an evaluation; forward_backward forms the gradients of hidden and weight.
    """

    version = "1"
    negligible = (0.01, 1e-6)
    params = (
        [8192, 32768],
        [4096],
        [50257, 151936],
        ["bfloat16"],
        ["forward", "forward_backward"],
        ["fused", "eager", "compiled", "torch"],
    )
    param_names = ("tokens", "d_model", "vocab_size", "dtype", "mode", "impl")
    workload, device, clock, cache = "linear_cross_entropy", "cuda", "cuda_events", "cold"

    def setup_cache(self):
        return measure_class(self)
