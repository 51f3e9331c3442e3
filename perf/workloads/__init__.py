"""What a case builds and runs, written once and used by asv classes, studies, gate and profile alike.

Each module has `build(params, device) -> Workload`. Sizes, FLOP and byte formulas used for measuring are literals here,
never read from `cs336_systems`: a commit that edits its own tables must not move an axis.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from perf.workloads.workload import Unavailable, Workload

PACKAGE = "cs336_systems"

FORMER_MODULES = {
    "accounting.collectives.best_bucket_bytes": "accounting.buckets",
    "accounting.collectives.exposed_seconds": "accounting.buckets",
    "accounting.compute.optimizer_bytes": "accounting.roofline",
}
"""Where older commits have what has moved since."""

_imported_as = PACKAGE


def import_as(name: str) -> None:
    """From now on the measured package is what is imported as `name`: of two commits side by side, one."""
    global _imported_as
    _imported_as = name


@contextmanager
def importing(name: str) -> Iterator[None]:
    """As `import_as`, meanwhile."""
    before = package()
    import_as(name)
    try:
        yield
    finally:
        import_as(before)


def package() -> str:
    """The name under which the measured package is imported just now."""
    return _imported_as


def build(workload: str, params: dict[str, Any], device: str) -> Workload:
    """The work of one case. Raises `Unavailable` with the reason where this commit or machine cannot do it."""
    return importlib.import_module(f"perf.workloads.{workload}").build(params, device)


def imported(name: str) -> Callable[..., Any]:
    """A user's own function, named `module:function`. Raises `ValueError` with one line if there is none."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not callable(found):
            raise TypeError(f"{type(found).__name__} is no function")
    except Exception as error:  # a module of a user's own may raise anything
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name!r} was given; allowed: module:function that can be imported ({why})") from None
    return found


def compile_any_number_of_shapes() -> None:
    """A grid's shapes, each compiled once in a process: torch goes on uncompiled after 8.

    Forgetting the old ones instead (`torch.compiler.reset`) would compile in every visit: six times a case, not two.
    """
    import torch

    if not set_in("torch._dynamo.config", recompile_limit=10_000, accumulated_recompile_limit=10_000):
        torch.compiler.reset()


def set_in(module: str, **settings: Any) -> bool:
    """Set torch's own settings, of which it promises nothing. False, and a warning, where it does not have them all."""
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
    """`cs336_systems.<module>.<name>` of the commit under test; `Unavailable` where the commit does not have it."""
    try:
        return getattr(measured_module(module), name)
    except (AttributeError, Unavailable) as error:
        if former := FORMER_MODULES.get(f"{module}.{name}"):
            return measured(former, name)
        if isinstance(error, Unavailable):
            raise
        raise Unavailable(f"this commit has no {PACKAGE}.{module}.{name}") from None


def measured_module(module: str) -> ModuleType:
    """`cs336_systems.<module>` of the commit under test; `Unavailable` where the commit does not have it."""
    imported_as = package()
    if imported_as in sys.modules and sys.modules[imported_as] is None:  # see harness.measure.pin_package
        raise Unavailable(f"this commit has no package {PACKAGE}")
    try:
        return importlib.import_module(f"{imported_as}.{module}")
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if missing.partition(".")[0] == imported_as:
            raise Unavailable(f"this commit has no module {PACKAGE}{missing.removeprefix(imported_as)}") from None
        raise Unavailable(f"{PACKAGE}.{module} needs {missing}, which is not installed") from None
