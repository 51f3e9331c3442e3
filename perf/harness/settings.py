"""Settings of a process that measured code may change: each of two packages in one process keeps its own.

What needs neither package, such as a peer, has the process's.

What is not listed counts for both: a function of torch's that a package replaces, a thread that it leaves running.
"""

import contextlib
import functools
import gc
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""Reads it, and sets it."""


class Settings:
    """The settings of several packages in one process, which begin with those of no package."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}
        self.current = ""
        """The package whose settings the process has; "" for those of none."""

    def switch_to(self, package: str) -> None:
        """Give the process the settings that this package left, and keep those of the package before."""
        if package == self.current:
            return
        self._kept[self.current] = read()
        apply(self._kept.get(package, self._kept[""]))
        self.current = package


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
        "default device": (_default_device, torch.set_default_device),
        **{f"{device} autocast": _autocast(device) for device in ("cpu", "cuda")},
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "garbage collection": (
            lambda: (gc.isenabled(), gc.get_threshold()),
            _collect,
        ),
        "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
        "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
        "import path": (lambda: list(sys.path), functools.partial(sys.path.__setitem__, slice(None))),
        "warnings": (lambda: list(warnings.filters), _filter),
        "environment": (lambda: dict(os.environb), _set_environment),
    }


def _attribute(root: Any, path: str) -> Setting:
    """Return the setting that is an attribute, at a path of several names."""
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, root)
    return functools.partial(getattr, owner, name), functools.partial(setattr, owner, name)


def _default_device() -> Any:
    """Return the device that was set; None without any, for which torch calls no hook in every function."""
    import torch

    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return context and context.device


def _autocast(device: str) -> Setting:
    import torch

    def put(setting: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(device, setting[0])
        torch.set_autocast_dtype(device, setting[1])

    return lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), put


def _filter(filters: list[Any]) -> None:
    warnings.resetwarnings()  # tells those who cache them, too
    warnings.filters[:] = filters  # type: ignore[index]


def _set_environment(wanted: dict[bytes, bytes]) -> None:
    for name in os.environb.keys() - wanted.keys():
        del os.environb[name]
    os.environb.update(wanted)


def _collect(setting: tuple[bool, tuple[int, int, int]]) -> None:
    is_enabled, threshold = setting
    gc.set_threshold(*threshold)
    (gc.enable if is_enabled else gc.disable)()
