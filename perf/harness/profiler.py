"""What ran on the device, and when, by torch.profiler: the one place that starts it."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

ENVIRONMENT = {"TEARDOWN_CUPTI": "1", "KINETO_LOG_LEVEL": "99"}
"""For a process that profiles and measures: without the first, its launches stay 30 % slower once it has profiled."""


class Activity(NamedTuple):
    """One kernel, copy or fill."""

    name: str
    start_s: float
    end_s: float


def device_activity(run: Callable[[], None]) -> list[Activity]:
    """What the device did because of `run`, in order of its starts."""
    import torch
    from torch.autograd import DeviceType

    def run_to_its_end() -> None:
        run()
        torch.cuda.synchronize()

    for _ in range(2):  # after a teardown, every second session finds nothing
        torch.cuda.synchronize()
        events = _events(run_to_its_end, torch.profiler.ProfilerActivity.CUDA)
        found = [
            activity
            for event, activity in events
            if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
        ]
        if found:
            return found
    return []


def host_activity(run: Callable[[], None]) -> list[Activity]:
    """The same of a CPU: every operator, and every collective of gloo from its start to its end."""
    import torch

    return [activity for _, activity in _events(run, torch.profiler.ProfilerActivity.CPU)]


def _events(run: Callable[[], None], of: Any) -> list[tuple[Any, Activity]]:
    """Each event of the profiler with what it stands for, in order of the starts.

    Kineto's own: `profile.events()` makes objects of them, 50 us each, where a step has thousands.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=[of]) as profile:
            run()
    results = profile.profiler.kineto_results
    begin_ns = results.trace_start_ns()
    found = []
    for event in results.events():
        start_s = (event.start_ns() - begin_ns) * 1e-9
        found.append((event, Activity(event.name(), start_s, start_s + event.duration_ns() * 1e-9)))
    return sorted(found, key=lambda one: one[1].start_s)
