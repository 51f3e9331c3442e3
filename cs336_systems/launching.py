"""Context of a Triton launch that is not made through `attention.launch.Launch`."""

import contextlib
from typing import Any

import triton
from torch import Tensor

from cs336_systems.attention import launch


def launching(kernel: Any, x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make x's device current; under Triton's interpreter wait for the launches of other threads instead."""
    if isinstance(kernel, triton.runtime.JITFunction):
        return launch._on_device_of(x)
    return launch._interpreter
