"""Rows that run no project code: when one of them moves, the machine moved."""

from perf.harness.suite import measure_class, reported_time


class Controls:
    """A large matmul (compute), a large copy (bandwidth) and a tiny addition (launch)."""

    version = "1"
    timeout = 600
    params = (["matmul", "copy", "launch"], ["cold", "warm"])
    param_names = ("control", "cache")
    workload, device, cache = "controls", "cuda", "cold"

    def setup_cache(self):
        return measure_class(self)

    def track_time(self, results, control, cache):
        return reported_time(self, results, control, cache)

    track_time.unit = "seconds"
