"""Base classes with asv's series. asv does not collect a class whose name begins with an underscore.

A class below adds its axes, `version`, and a `setup_cache` of its own, because asv keys a cache by the line of
`setup_cache`: classes that inherited one would share its results.
"""

from perf.harness.suite import reported_fact, reported_peak_memory, reported_time


class _Timed:
    """A series of samples in seconds."""

    timeout = 600

    def track_time(self, results, *params):
        return reported_time(self, results, *params)

    track_time.unit = "seconds"


class _Weighed:
    """A series of peak memory in bytes."""

    timeout = 600

    def track_peak_memory(self, results, *params):
        return reported_peak_memory(self, results, *params)

    track_peak_memory.unit = "bytes"


class _WeighedThrice:
    """Series of a rank's peak memory in bytes, at three points: model made, before and after the optimizer's step."""

    def track_after_init_bytes(self, results, *params):
        return reported_fact(self, results, "after_init_bytes", *params)

    def track_before_step_bytes(self, results, *params):
        return reported_fact(self, results, "before_step_bytes", *params)

    def track_after_step_bytes(self, results, *params):
        return reported_fact(self, results, "after_step_bytes", *params)

    track_after_init_bytes.unit = track_before_step_bytes.unit = track_after_step_bytes.unit = "bytes"
