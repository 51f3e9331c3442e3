"""Device context and device check of a Triton launch."""

import contextlib
import threading
from typing import Any

import torch
import triton
from torch import Tensor

INTERPRETER = threading.Lock()
"""Held while Triton's interpreter runs a kernel: it puts its own functions in the place of Triton's language."""


def require_launchable(kernel: Any, x: Tensor, name: str) -> None:
    """Raise `ValueError` unless the kernel runs on x's device: CUDA, or the CPU under Triton's interpreter."""
    if not x.is_cuda and (isinstance(kernel, triton.runtime.JITFunction) or not x.is_cpu):
        raise ValueError(f"{name} is on {x.device}; allowed for Triton: CUDA, or the CPU with TRITON_INTERPRET=1")


def launching(kernel: Any, x: Any) -> contextlib.AbstractContextManager[Any]:
    """Make x's device current; under Triton's interpreter wait for the launches of other threads instead."""
    return on_device_of(x) if isinstance(kernel, triton.runtime.JITFunction) else INTERPRETER


def on_device_of(x: Any) -> contextlib.AbstractContextManager[Any]:
    """Make the device of a tensor or descriptor current: Triton launches there, wherever its pointers are."""
    device = x.device if isinstance(x, Tensor) else x.base.device
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
