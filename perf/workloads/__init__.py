"""What a case builds and runs, written once and used by asv classes, studies, gate and profile alike.

Each module has `build(params, device) -> Workload`. Sizes, FLOP and byte formulas used for measuring are literals here,
never read from `cs336_systems`: a commit that edits its own tables must not move an axis.
"""

import importlib
import sys
from typing import Any

from perf.workloads.workload import Unavailable, Workload

PACKAGE = "cs336_systems"


def build(workload: str, params: dict[str, Any], device: str) -> Workload:
    """The work of one case. Raises `Unavailable` with the reason where this commit or machine cannot do it."""
    return importlib.import_module(f"perf.workloads.{workload}").build(params, device)


def compile_any_number_of_shapes() -> None:
    """A grid's shapes, each compiled once in a process: torch goes on uncompiled after 8.

    Forgetting the old ones instead (`torch.compiler.reset`) would compile in every visit: six times a case, not two.
    """
    import torch._dynamo.config

    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000


def measured(module: str, name: str) -> Any:
    """`cs336_systems.<module>.<name>` of the commit under test; `Unavailable` where the commit does not have it."""
    path = f"{PACKAGE}.{module}"
    if PACKAGE in sys.modules and sys.modules[PACKAGE] is None:  # see harness.measure.pin_package
        raise Unavailable(f"this commit has no package {PACKAGE}")
    try:
        found = importlib.import_module(path)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if missing.partition(".")[0] == PACKAGE:
            raise Unavailable(f"this commit has no module {missing}") from None
        raise Unavailable(f"{path} needs {missing}, which is not installed") from None
    try:
        return getattr(found, name)
    except AttributeError:
        raise Unavailable(f"this commit has no {path}.{name}") from None
