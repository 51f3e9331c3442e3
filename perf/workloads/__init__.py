"""The work of each case, shared by asv classes, studies, gate and profile.

Each module has `build(params, device) -> Workload`. Sizes, FLOP and byte formulas used for measuring are literals here,
never read from `cs336_systems`: a commit that edits its own tables must not move an axis.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from perf.workloads.workload import Unavailable, Workload

PACKAGE = "cs336_systems"

NOT_INSTALLED = "which is not installed"
"""How the reason of a case ends whose commit imports what this machine lacks."""

OPTIONAL = ("triton",)
"""Packages that torch brings to some machines only."""

FORMER_MODULES = {
    "accounting.collectives.best_bucket_bytes": "accounting.buckets",
    "accounting.collectives.exposed_seconds": "accounting.buckets",
    "accounting.compute.optimizer_bytes": "accounting.roofline",
}
"""Former modules of names that have moved, for older commits."""

_imported_as = PACKAGE
_before_use: Callable[[], object] | None = None


def import_as(name: str, before_use: Callable[[], object] | None = None) -> None:
    """Set the name under which the measured package is imported; two commits side by side have two names.

    `before_use` is called each time that a workload needs a module of the package.
    """
    global _imported_as, _before_use
    _imported_as, _before_use = name, before_use


@contextmanager
def importing(name: str, before_use: Callable[[], object] | None = None) -> Iterator[None]:
    """Call `import_as` for the duration of the block."""
    before = _imported_as, _before_use
    import_as(name, before_use)
    try:
        yield
    finally:
        import_as(*before)


def package() -> str:
    """Return the name under which the measured package is currently imported."""
    return _imported_as


def build(workload: str, params: dict[str, Any], device: str) -> Workload:
    """Build the work of a case. Raises `Unavailable` with the reason if this commit or machine cannot run it."""
    return importlib.import_module(f"perf.workloads.{workload}").build(params, device)


def imported(name: str) -> Callable[..., Any]:
    """Import a user's own function, named `module:function`. Raises `ValueError` with one line if that fails."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
        if not callable(function):
            raise TypeError(f"{type(function).__name__} is not a function")
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name!r} was given; allowed: module:function that can be imported ({reason})") from None
    return function


def compile_any_number_of_shapes() -> None:
    """Lift torch's limit of 8 compiled shapes a function, after which it runs uncompiled.

    Resetting the compiler instead (`torch.compiler.reset`) would compile in every visit: six times a case, not twice.
    """
    import torch

    if not set_in("torch._dynamo.config", recompile_limit=10_000, accumulated_recompile_limit=10_000):
        torch.compiler.reset()


def set_in(module: str, **settings: Any) -> bool:
    """Set torch's unstable settings; warn and return False if this torch lacks any of them."""
    try:
        config = importlib.import_module(module)
        for name in settings:
            getattr(config, name)
    except (ImportError, AttributeError) as error:
        warnings.warn(f"{module}: this torch has no {', '.join(settings)} ({error})", stacklevel=2)
        return False
    for name, value in settings.items():
        setattr(config, name, value)
    return True


def measured(module: str, name: str) -> Any:
    """Return `cs336_systems.<module>.<name>` of the measured commit. Raises `Unavailable` if the commit lacks it."""
    try:
        found = measured_module(module)
        if hasattr(found, name):
            return getattr(found, name)
        reason = f"this commit has no {PACKAGE}.{module}.{name}"
    except Unavailable as error:
        reason = str(error)
    if former := FORMER_MODULES.get(f"{module}.{name}"):
        with suppress(Unavailable):
            return measured(former, name)
    raise Unavailable(reason)


def require_triton(impl: str, device: str) -> None:
    """Raise `Unavailable` if `impl` launches Triton kernels, and `device` is a CPU without Triton's interpreter.

    Without Triton `measured_module` raises it.
    """
    if not impl.startswith("triton") or device != "cpu":
        return
    with suppress(ModuleNotFoundError):
        import triton

        if not triton.knobs.runtime.interpret:
            raise Unavailable(f"{impl} needs a CUDA GPU; Triton's interpreter, TRITON_INTERPRET=1, computes on a CPU")


def measured_module(module: str) -> ModuleType:
    """Return `cs336_systems.<module>` of the measured commit. Raises `Unavailable` if the commit lacks it.

    A module that is there and cannot be imported is broken, whatever it lacks itself, but for a package of `OPTIONAL`.
    """
    imported_as = package()
    if _before_use:
        _before_use()
    if imported_as in sys.modules and sys.modules[imported_as] is None:  # see harness.measure.pin_package
        raise Unavailable(f"this commit has no package {PACKAGE}")
    try:
        return importlib.import_module(f"{imported_as}.{module}")
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if f"{imported_as}.{module}.".startswith(f"{missing}."):
            raise Unavailable(f"this commit has no module {PACKAGE}{missing.removeprefix(imported_as)}") from None
        if missing.partition(".")[0] in OPTIONAL:
            raise Unavailable(f"{PACKAGE}.{module} needs {missing}, {NOT_INSTALLED}") from None
        raise
