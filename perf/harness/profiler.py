"""Device and host activities with their times, by torch.profiler."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

ENVIRONMENT = {"TEARDOWN_CUPTI": "1", "KINETO_LOG_LEVEL": "99"}
"""For a process that profiles and measures: without TEARDOWN_CUPTI its launches stay 30 % slower after a profile."""


class Activity(NamedTuple):
    """One kernel, copy or fill."""

    name: str
    start_s: float
    end_s: float
    stream: int = 0
    """Number of the device's stream, or of the host's thread."""


def device_activity(run: Callable[[], None]) -> list[Activity]:
    """Return the device's activities caused by `run`, in the order of their starts."""
    import torch
    from torch.autograd import DeviceType

    def run_to_its_end() -> None:
        run()
        torch.cuda.synchronize()

    for _ in range(2):  # after a teardown, every second session records nothing
        torch.cuda.synchronize()
        events = _events(run_to_its_end, torch.profiler.ProfilerActivity.CUDA)
        activities = [
            activity
            for event, activity in events
            if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
        ]
        if activities:
            return activities
    return []


def host_activity(run: Callable[[], None]) -> list[Activity]:
    """Return the CPU's activities caused by `run`: every operator, and every gloo collective from start to end."""
    import torch

    return [activity for _, activity in _events(run, torch.profiler.ProfilerActivity.CPU)]


def _events(run: Callable[[], None], of: Any) -> list[tuple[Any, Activity]]:
    """Return each of the profiler's events with its activity, in the order of their starts.

    The events are Kineto's own: `profile.events()` would take 50 us for each of a step's thousands.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=[of]) as profile:
            run()
    results = profile.profiler.kineto_results
    begin_ns = results.trace_start_ns()
    events = []
    for event in results.events():
        start_s = (event.start_ns() - begin_ns) * 1e-9
        end_s, stream = start_s + event.duration_ns() * 1e-9, event.device_resource_id()
        events.append((event, Activity(event.name(), start_s, end_s, stream)))
    return sorted(events, key=lambda pair: pair[1].start_s)
