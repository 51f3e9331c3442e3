"""`spawn` of the package, from a server which has imported more: an optimizer's first is 1 to 2 s for every rank.

`pytest --ranks nccl tests/distributed tests/optimizer` runs the same functions on GPUs, one for each rank, and leaves
out the tests that need more ranks than there are GPUs; with `--ranks gloo_on_cuda` the ranks share the GPUs, and with
`--ranks like_gloo_on_cuda` they have no GPU and what gloo has for CUDA tensors.
"""

import os
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

import tests.distributed.backends  # noqa: F401, which are registered where this is imported, in ranks too
from cs336_systems.distributed import process_group

RANKS = os.environ.get("TESTS_RANKS", "gloo")  # as conftest.py sets it
BACKEND = "gloo" if RANKS == "gloo_on_cuda" else RANKS
ON_NCCL = RANKS == "nccl"
ON_GPUS = ON_NCCL or RANKS == "gloo_on_cuda"
counts_coalesced_calls = pytest.mark.skipif(RANKS not in ("gloo", "nccl"), reason="the backend coalesces no calls")


def spawn(function: Callable[..., Any], world_size: int, *args: Any, **kwargs: Any) -> list[Any]:
    """The package's; what is preloaded here holds until the end of this process."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # else what is preloaded starts CUDA, and no fork could use it
    forkserver.set_forkserver_preload([process_group.__name__, "torch._dynamo", "pytest"])
    forkserver.ensure_running()
    kwargs = {"backend": BACKEND} | kwargs
    if not ON_GPUS:
        return process_group.spawn(function, world_size, *args, **kwargs)
    if ON_NCCL and world_size > torch.cuda.device_count():
        pytest.skip(f"needs {world_size} GPUs")
    return process_group.spawn(on_a_gpu, world_size, function, *args, **kwargs)


def who_i_am(rank: int) -> tuple[int, int]:
    """Here because to import this module takes a rank no time."""
    return rank, dist.get_world_size()


def on_a_gpu(rank: int, function: Callable[..., Any], *args: Any) -> Any:
    """Tensors are made on the rank's GPU unless they are told otherwise; what is returned is on the CPU."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")
    return tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), function(rank, *args))
