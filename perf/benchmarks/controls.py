"""Controls, which run no project code: when a control moves, the machine moved."""

from perf.benchmarks._series import _Timed
from perf.harness.suite import measure_class


class Controls(_Timed):
    """A large matmul (compute), a large copy (bandwidth) and a tiny addition (launch)."""

    version = "1"
    is_control = True
    negligible = (0.01, 3e-7)
    params = (["matmul", "copy", "launch"], ["cold", "warm"])
    param_names = ("control", "cache")
    workload, device, clock, cache = "controls", "cuda", "cuda_events", "cold"

    def setup_cache(self):
        return measure_class(self)


class Clocks(_Timed):
    """The same work by every clock: a tiny addition, and a host-bound step of 48 small layers.

    Their differences are the cost of launches, gaps and synchronization on this machine.
    """

    version = "1"
    is_control = True
    negligible = (0.05, 2e-7)
    params = (["launch", "linears"], ["cuda_events", "cuda_graph", "device_busy", "gpu_wall"])
    param_names = ("control", "clock")
    workload, device, cache = "controls", "cuda", "warm"

    def setup_cache(self):
        return measure_class(self)
