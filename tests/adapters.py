"""The course's interface to this package: its tests call only these names."""

from collections.abc import Iterable
from typing import Any

import torch


def get_flashattention_autograd_function_pytorch() -> type:
    """Return the class (not its apply) of FlashAttention-2 in PyTorch."""
    from cs336_systems.attention.flash_pytorch import FlashAttentionPyTorch

    return FlashAttentionPyTorch


def get_flashattention_autograd_function_triton() -> type:
    """Return the class (not its apply) of FlashAttention-2 in Triton."""
    from cs336_systems.attention.flash_triton import FlashAttentionTriton

    return FlashAttentionTriton


def get_ddp_individual_parameters(module: torch.nn.Module) -> torch.nn.Module:
    """Wrap `module` for one overlapped all-reduce per parameter."""
    from cs336_systems.distributed.ddp import OverlappedDDP

    return OverlappedDDP(module)


def ddp_individual_parameters_on_after_backward(ddp_model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Finish the synchronization between the backward and the optimizer's step."""
    ddp_model.finish_gradient_synchronization()


def get_ddp_bucketed(module: torch.nn.Module, bucket_size_mb: float) -> torch.nn.Module:
    """Wrap `module` for one overlapped all-reduce per bucket."""
    from cs336_systems.distributed.ddp import BucketedDDP

    return BucketedDDP(module, bucket_size_mb)


def ddp_bucketed_on_train_batch_start(ddp_model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Do nothing before a batch."""


def ddp_bucketed_on_after_backward(ddp_model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Finish the synchronization between the backward and the optimizer's step."""
    ddp_model.finish_gradient_synchronization()


def get_ddp(module: torch.nn.Module) -> torch.nn.Module:
    """Call `get_ddp_individual_parameters`, under its name of 2026."""
    return get_ddp_individual_parameters(module)


def ddp_on_after_backward(ddp_model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Call `ddp_individual_parameters_on_after_backward`, under its name of 2026."""
    ddp_individual_parameters_on_after_backward(ddp_model, optimizer)


def get_fsdp(module: torch.nn.Module, compute_dtype: torch.dtype | None = None) -> torch.nn.Module:
    """Wrap `module` for fully sharded data parallelism."""
    from cs336_systems.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Finish the synchronization between the backward and the optimizer's step."""
    fsdp_model.finish_gradient_synchronization()


def fsdp_gather_full_params(fsdp_model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Map the unwrapped model's names to whole tensors."""
    return fsdp_model.state_dict()


def get_sharded_optimizer(
    params: Iterable[Any], optimizer_cls: type[torch.optim.Optimizer], **kwargs: Any
) -> torch.optim.Optimizer:
    """Build ZeRO stage 1 over the default process group."""
    from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer

    return ShardedOptimizer(params, optimizer_cls, **kwargs)
