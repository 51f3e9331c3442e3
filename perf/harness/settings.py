"""Settings of a process that measured code may change: each of two packages in one process keeps its own.

What is not listed counts for both: a function of torch's that a package replaces, a thread that it leaves running.
"""

import contextlib
import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""Reads it, and sets it."""


class Settings:
    """The settings of several packages in one process, which begin with what the process has then."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}
        self._original: dict[str, Any] = {}
        self._current = ""

    def switch_to(self, package: str) -> None:
        """Give the process the settings that this package left, and keep those of the package before."""
        if package == self._current:
            return
        now = read()
        if self._current:
            self._kept[self._current] = now
        else:
            self._original = now
        apply(self._kept.get(package, self._original))
        self._current = package


def read() -> dict[str, Any]:
    """Return the present settings by name, those that this release of torch lets read."""
    found = {}
    for name, (get, _) in _settings().items():
        with contextlib.suppress(AttributeError, RuntimeError):  # of precisions that were set in two ways, too
            found[name] = get()
    return found


def apply(settings: dict[str, Any]) -> None:
    """Set what differs."""
    for name, (get, put) in _settings().items():
        with contextlib.suppress(AttributeError, RuntimeError):
            if name in settings and get() != settings[name]:
                put(settings[name])


@functools.cache
def _settings() -> dict[str, Setting]:
    import torch

    backends = torch.backends
    attributes = [
        "cuda.matmul.fp32_precision",
        "cuda.matmul.allow_fp16_reduced_precision_reduction",
        "cuda.matmul.allow_bf16_reduced_precision_reduction",
        "mkldnn.matmul.fp32_precision",
        "cudnn.conv.fp32_precision",
        "cudnn.enabled",
        "cudnn.benchmark",
        "cudnn.deterministic",
    ]
    attention = ("flash", "mem_efficient", "math", "cudnn")
    return {
        # The older switch first: it sets the newer ones.
        "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        **{name: _attribute(backends, name) for name in attributes},
        **{
            f"{kernel} attention": (
                getattr(backends.cuda, f"{kernel}_sdp_enabled"),
                getattr(backends.cuda, f"enable_{kernel}_sdp"),
            )
            for kernel in attention
        },
        "anomaly detection": (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda both: torch.autograd.set_detect_anomaly(*both),
        ),
        "deterministic algorithms": (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
        ),
        "gradients": (torch.is_grad_enabled, torch._C._set_grad_enabled),
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "garbage collection": (
            lambda: (gc.isenabled(), gc.get_threshold()),
            _collect,
        ),
        "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    }


def _attribute(root: Any, path: str) -> Setting:
    """Return the setting that is an attribute, at a path of several names."""
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, root)
    return functools.partial(getattr, owner, name), functools.partial(setattr, owner, name)


def _collect(setting: tuple[bool, tuple[int, int, int]]) -> None:
    is_enabled, threshold = setting
    gc.set_threshold(*threshold)
    (gc.enable if is_enabled else gc.disable)()
