"""What ran on the device, and when, by torch.profiler: the one place that starts it."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

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

    for _ in range(2):  # after a teardown, every second session finds nothing
        torch.cuda.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                run()
                torch.cuda.synchronize()
            events = profile.events() or []
        found = [
            Activity(event.name, event.time_range.start * 1e-6, event.time_range.end * 1e-6)
            for event in events
            if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
        ]
        if found:
            return sorted(found, key=lambda activity: activity.start_s)
    return []


def host_activity(run: Callable[[], None]) -> list[Activity]:
    """The same of a CPU: every operator, and every collective of gloo from its start to its end."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run()
        events = profile.events() or []
    found = [Activity(event.name, event.time_range.start * 1e-6, event.time_range.end * 1e-6) for event in events]
    return sorted(found, key=lambda activity: activity.start_s)
