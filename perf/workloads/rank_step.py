"""A training step on every rank: its phases, and what every workload of such a step reports."""

from collections.abc import Callable, Iterable
from typing import Any

from perf.workloads.workload import WrongResult

POINTS = ("after_init_bytes", "before_step_bytes", "after_step_bytes")
"""Facts of `peaks_of`."""

Finish = Callable[[], object]
"""Ends the communication of a backward."""


def gradients(train: Any, finish: Finish = lambda: None) -> Any:
    """Take a step of the commit's `TrainStep` up to its optimizer; return the loss."""
    train.optimizer.zero_grad(set_to_none=True)
    loss = train.forward()
    train.backward(loss)
    finish()
    return loss.detach()


def step(train: Any, finish: Finish = lambda: None) -> Any:
    """Take a whole step; return the loss."""
    loss = gradients(train, finish)
    train.optimizer_step()
    return loss


def require_equal_on_all_ranks(model: Any) -> None:
    """Raise `WrongResult` unless all ranks have the same weights, by the sums of their bytes."""
    import torch
    import torch.distributed as dist

    sums = {name: int(value.detach().view(torch.uint8).sum()) for name, value in model.named_parameters()}
    sums_by_rank: list[dict[str, int]] = [{}] * dist.get_world_size()
    dist.all_gather_object(sums_by_rank, sums)
    for rank, theirs in enumerate(sums_by_rank):
        different = [name for name in sums if theirs[name] != sums[name]]
        if different:
            raise WrongResult(f"{different[0]} differs between ranks {dist.get_rank()} and {rank} after a step")


def own_rows(whole: Any, local: Any) -> Any:
    """Return the rows of a whole tensor that this rank has as `local`: equal shares, of the last ranks less."""
    import torch.distributed as dist

    if whole.shape == local.shape:
        return whole
    share = -(-whole.shape[0] // dist.get_world_size())
    return whole[dist.get_rank() * share : (dist.get_rank() + 1) * share]


def state_of(optimizer: Any) -> Any:
    """Return this rank's state; torch's sharded optimizer wraps another optimizer."""
    return getattr(optimizer, "optim", optimizer).state


def state_bytes(
    parameters: Iterable[Any], optimizer: Any, local: Callable[[Any], Any] = lambda value: value
) -> dict[str, float]:
    """Return parameter_bytes and optimizer_bytes, of what `local` gives of each tensor, without scalars."""
    state = (value for values in state_of(optimizer).values() for value in values.values() if value.ndim)
    return {
        "parameter_bytes": sum(local(value).nbytes for value in parameters),
        "optimizer_bytes": sum(local(value).nbytes for value in state),
    }


def peaks_of(
    after_init: int, gradients: Callable[[], Any], optimizer_step: Callable[[], Any], device: str
) -> dict[str, int]:
    """Return a rank's peak up to three points of a step, which this runs; nothing without a GPU."""
    import torch

    if device != "cuda":
        return {}
    torch.cuda.reset_peak_memory_stats()
    gradients()
    before_step = peak_bytes(device)
    optimizer_step()
    return dict(zip(POINTS, (after_init, before_step, peak_bytes(device)), strict=True))


def peak_bytes(device: str) -> int:
    """Return the peak of the requested bytes: the allocator's own blocks depend on its cache."""
    import torch

    return torch.cuda.memory_stats()["requested_bytes.all.peak"] if device == "cuda" else 0
