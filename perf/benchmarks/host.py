"""The host's time of a call, from Python to the last launch, and what torch.compile makes of a step.

The device's clocks leave out the launch path: a call of ours that takes the host 30 us more is seen here alone.
"""

from perf.benchmarks._series import _Timed
from perf.harness.suite import measure_class, reported_fact


class AttentionCall(_Timed):
    """Launch of `attention.FlashAttention`, at shapes that choose different kernels; users call `flash_attention`."""

    version = "1"
    negligible = (0.05, 1e-6)
    params = (
        [128, 1024, 8192],
        [64, 80, 128],
        ["bfloat16"],
        ["forward", "backward", "forward_backward"],
        ["flash_attention", "triton", "triton_compiled", "sdpa"],
    )
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, clock, cache = "host", "cuda", "host", "warm"

    def setup_cache(self):
        return measure_class(self)


class TrainingCall(_Timed):
    """Launch of each phase of a step of the smallest model, so short that its launches do not fill the GPU's queue."""

    version = "1"
    negligible = (0.05, 1e-5)
    params = (
        ["small"],
        [128],
        ["bf16"],
        ["eager", "compiled_blocks"],
        ["triton", "sdpa"],
        ["forward", "backward", "optimizer", "step"],
    )
    param_names = ("size", "context_length", "precision", "variant", "attention", "mode")
    workload, device, clock, cache = "host", "cuda", "host", "warm"

    def setup_cache(self):
        return measure_class(self)


class CompiledStep(_Timed):
    """First call of a compiled step with empty caches; its graphs, graph breaks and recompilations in two steps."""

    version = "1"
    negligible = (0.1, 0.1)
    params = (["small"], [512], ["bf16"], ["compiled_blocks", "compiled"], ["triton", "sdpa"], ["step"])
    param_names = ("size", "context_length", "precision", "variant", "attention", "mode")
    workload, device, clock, cache = "compiled_step", "cuda", "first_call", "cold"

    def setup_cache(self):
        return measure_class(self)

    def track_graphs(self, results, *params):
        return reported_fact(self, results, "graphs", *params)

    def track_graph_breaks(self, results, *params):
        return reported_fact(self, results, "graph_breaks", *params)

    def track_recompiles(self, results, *params):
        return reported_fact(self, results, "recompiles", *params)

    track_graphs.unit = track_graph_breaks.unit = track_recompiles.unit = "count"
