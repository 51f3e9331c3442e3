"""A CPU-sized slice of every class, by the wall clock: a machine without a GPU runs the real thing."""

from perf.harness.suite import measure_class, reported_time


class SmokeAttention:
    """`attention.FlashAttention` on a CPU, without the Triton kernels."""

    version = "1"
    timeout = 600
    params = ([128, 512], [64], ["float32"], ["forward", "forward_backward"], ["pytorch", "reference", "sdpa"])
    param_names = ("seq_len", "d", "dtype", "mode", "impl")
    workload, device, cache = "attention", "cpu", "warm"

    def setup_cache(self):
        return measure_class(self)

    def track_time(self, results, seq_len, d, dtype, mode, impl):
        return reported_time(self, results, seq_len, d, dtype, mode, impl)

    track_time.unit = "seconds"


class SmokeControls:
    """`controls.Controls` on a CPU."""

    version = "1"
    timeout = 600
    params = (["matmul", "copy", "launch"],)
    param_names = ("control",)
    workload, device, cache = "controls", "cpu", "warm"

    def setup_cache(self):
        return measure_class(self)

    def track_time(self, results, control):
        return reported_time(self, results, control)

    track_time.unit = "seconds"
