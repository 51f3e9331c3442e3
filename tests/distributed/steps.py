"""Shared parts of the tests of data parallelism: strategies, batches, training on a rank, and counts of its calls."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.distributed.collectives import Traffic
from cs336_systems.distributed.ddp import BucketedDDP, FlatDDP, NaiveDDP, OverlappedDDP
from tests.distributed.models import FEATURES_IN, FEATURES_OUT

STRATEGIES: dict[str, Callable[..., Any]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlapped": OverlappedDDP,
    "bucketed": partial(BucketedDDP, bucket_size_mb=0.0025),  # 2621 B hold one or several of the tensors in `models`
    "one_bucket": partial(BucketedDDP, bucket_size_mb=None),
}
BATCH_SIZE = 24  # divides over 1 to 4 ranks


def batch(step: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, Tensor]:
    """Return a rank's share of the inputs and labels of a step."""
    generator = torch.Generator().manual_seed(step)
    inputs, labels = (
        torch.randn(BATCH_SIZE, features, generator=generator, device="cpu").to(torch.get_default_device())
        for features in (FEATURES_IN, FEATURES_OUT)
    )
    return inputs.chunk(world_size)[rank], labels.chunk(world_size)[rank]


def backward(net: nn.Module, inputs: Tensor, labels: Tensor, scale: float = 1.0) -> None:
    (nn.functional.mse_loss(net(inputs), labels) * scale).backward()


def finish(net: nn.Module) -> None:
    """Finish the synchronization, if the module has one."""
    if hasattr(net, "finish_gradient_synchronization"):
        net.finish_gradient_synchronization()


def train(net: nn.Module, rank: int = 0, world_size: int = 1, *, steps: int = 5, first: int = 0) -> dict[str, Tensor]:
    """Train with SGD and momentum; return the values afterwards."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(first, first + steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        backward(net, *batch(step, rank, world_size))
        finish(net)
        optimizer.step()
    return values(net)


def seeded(build: Callable[..., nn.Module], seed: int = 0) -> nn.Module:
    """Build on the CPU, so that the values are the same on every device."""
    torch.manual_seed(seed)
    with torch.device("cpu"):
        module = build()
    return module.to(torch.get_default_device())


def values(net: nn.Module) -> dict[str, Tensor]:
    """Copy all parameters and buffers, by the plain module's names."""
    module = getattr(net, "module", net)
    return {name: value.detach().clone() for name, value in [*module.named_parameters(), *module.named_buffers()]}


def gradients(net: nn.Module) -> dict[str, Tensor | None]:
    """Copy the gradients, by the plain module's names."""
    module = getattr(net, "module", net)
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def mean_gradients(every: list[dict[str, Tensor | None]]) -> dict[str, Tensor | None]:
    """Average over the ranks. None counts as zero, unless no rank has a gradient."""
    present = {name: [rank[name] for rank in every if rank[name] is not None] for name in every[0]}
    return {name: torch.stack(some).sum(0) / len(every) if some else None for name, some in present.items()}


def max_error(ours: Mapping[str, Tensor], alone: Mapping[str, Tensor]) -> float:
    """Return the largest difference of our values from those of one process."""
    return max(float((ours[name] - value).abs().max()) for name, value in alone.items())


def gradient_errors(sharded: nn.Module, alone: nn.Module, rank: int, world_size: int) -> dict[str, float]:
    """Map each trained parameter to the largest difference of its gradient from this rank's rows of one process's.

    Checks that a parameter has a gradient where that of one process has one.
    """
    errors = {}
    for name, mine in getattr(sharded, "module", sharded).named_parameters():
        whole = alone.get_parameter(name).grad
        assert (mine.grad is None) == (whole is None), name
        if whole is not None:
            rows = whole if whole.shape == mine.shape else whole.split(-(-len(whole) // world_size))[rank]
            errors[name] = float((mine.grad - rows).abs().max())
    return errors


def error_of(function: Callable[..., Any], *args: Any) -> str:
    """Return the error that a call raises, or "nothing"."""
    try:
        function(*args)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@contextlib.contextmanager
def counted() -> Iterator[Traffic]:
    """Count the all-reduces that torch.distributed receives, but for flags of uint8; a coalesced one is one call."""
    traffic = Traffic()
    all_reduce, coalesced = dist.all_reduce, dist.ProcessGroup.allreduce_coalesced

    def counting_all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype != torch.uint8:
            traffic.add(tensor.nbytes)
        return all_reduce(tensor, *args, **kwargs)

    def counting_coalesced(group: dist.ProcessGroup, tensors: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        traffic.add(sum(tensor.nbytes for tensor in tensors))
        return coalesced(group, tensors, *args, **kwargs)

    with (
        patch.object(dist, "all_reduce", counting_all_reduce),
        patch.object(dist.ProcessGroup, "allreduce_coalesced", counting_coalesced),
    ):
        yield traffic
