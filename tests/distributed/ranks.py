"""`spawn` of the package, from a server which has imported more: an optimizer's first is 1 to 2 s for every rank."""

from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

import torch
import torch.distributed as dist

from cs336_systems.distributed import process_group


def spawn(function: Callable[..., Any], world_size: int, *args: Any, **kwargs: Any) -> list[Any]:
    """The package's; what is preloaded here holds until the end of this process."""
    if not torch.cuda.is_available():  # nobody has tried which of these imports let a fork use CUDA
        forkserver.set_forkserver_preload([process_group.__name__, "torch._dynamo", "pytest"])
        forkserver.ensure_running()
    return process_group.spawn(function, world_size, *args, **kwargs)


def who_i_am(rank: int) -> tuple[int, int]:
    """Here because to import this module takes a rank no time."""
    return rank, dist.get_world_size()
