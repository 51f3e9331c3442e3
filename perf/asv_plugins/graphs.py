"""Publish long histories in less CPU time.

With 5,000 commits of 300 series, half of them bytes that never change, asv spends most of its time on two things: it
averages every value of every commit again in each of the 14 calls of `Graph.get_data`, and it searches constant series
for steps at the cost of noisy ones.
"""

import functools
from collections.abc import Sequence
from typing import Any

from asv import step_detect
from asv.graph import Graph


def _averaged_once(get_data: Any) -> Any:
    @functools.wraps(get_data)
    def averaged(self: Any) -> Any:
        if getattr(self, "_averaged", None) is None:
            self._averaged = get_data(self)
            for revision, values, weights in self._averaged:  # The averages take the place of the points in memory.
                self.data_points[revision] = [[values] if self.scalar_series else values]
                self.data_weights[revision] = [[weights] if self.scalar_series else weights]
        return self._averaged

    return averaged


def _averaged_anew(add_data_point: Any) -> Any:
    @functools.wraps(add_data_point)
    def added(self: Any, *arguments: Any, **options: Any) -> None:
        self._averaged = None
        add_data_point(self, *arguments, **options)

    return added


def _constant_first(detect_steps: Any) -> Any:
    @functools.wraps(detect_steps)
    def detected(y: Sequence[float | None], w: Sequence[float | None] | None = None) -> Any:
        known = [(at, value) for at, value in enumerate(y) if value is not None and value == value]
        if len({value for _, value in known}) != 1 or any(weight is not None for weight in w or ()):
            return detect_steps(y, w)
        (first, value), (last, _) = known[0], known[-1]
        return [(first, last + 1, float(value), value, 0.0)]

    return detected


def install() -> None:
    """Wrap asv's functions, once."""
    if not hasattr(Graph.get_data, "__wrapped__"):
        Graph.get_data = _averaged_once(Graph.get_data)
        Graph.add_data_point = _averaged_anew(Graph.add_data_point)
        step_detect.detect_steps = _constant_first(step_detect.detect_steps)
