"""`spawn` of the package, from a server which has imported more: an optimizer's first is 1 to 2 s for every rank.

`pytest --nccl tests/distributed tests/optimizer` runs the same functions on GPUs, one for each rank, and leaves out the
tests that need more ranks than there are GPUs.
"""

import os
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from cs336_systems.distributed import process_group

ON_GPUS = os.environ.get("TESTS_ON_NCCL") == "1"  # as conftest.py sets it


def spawn(function: Callable[..., Any], world_size: int, *args: Any, **kwargs: Any) -> list[Any]:
    """The package's; what is preloaded here holds until the end of this process."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # else what is preloaded starts CUDA, and no fork could use it
    forkserver.set_forkserver_preload([process_group.__name__, "torch._dynamo", "pytest"])
    forkserver.ensure_running()
    if not ON_GPUS:
        return process_group.spawn(function, world_size, *args, **kwargs)
    if world_size > torch.cuda.device_count():
        pytest.skip(f"needs {world_size} GPUs")
    return process_group.spawn(_on_its_gpu, world_size, function, *args, backend="nccl", **kwargs)


def who_i_am(rank: int) -> tuple[int, int]:
    """Here because to import this module takes a rank no time."""
    return rank, dist.get_world_size()


def _on_its_gpu(rank: int, function: Callable[..., Any], *args: Any) -> Any:
    """Tensors are made on the rank's GPU unless they are told otherwise; what is returned is on the CPU."""
    torch.set_default_device("cuda")
    return tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), function(rank, *args))
