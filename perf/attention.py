"""Attention: the course's FlashAttention benchmark as a dense grid."""

from perf.harness.suite import measure_class, reported_peak_memory, reported_time


class FlashAttention:
    """Batch 1, one head, causal; `reference` is eager PyTorch, `sdpa` is whatever torch picks for the shape."""

    version = "1"
    timeout = 600
    params = (
        [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
        [16, 32, 64, 128],
        ["bfloat16", "float32"],
        ["forward", "backward", "forward_backward"],
        ["triton", "reference", "sdpa"],
    )
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, cache = "attention", "cuda", "cold"

    def setup_cache(self):
        return measure_class(self)

    def track_time(self, results, seq_len, d, dtype, mode, impl):
        return reported_time(self, results, seq_len, d, dtype, mode, impl)

    def track_peak_memory(self, results, seq_len, d, dtype, mode, impl):
        return reported_peak_memory(self, results, seq_len, d, dtype, mode, impl)

    track_time.unit = "seconds"
    track_peak_memory.unit = "bytes"
