"""Averages over the ranks that a sharded model's gradients are under way to."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems.distributed import private
from cs336_systems.distributed.collectives import Average, Traffic, naming, refuse_sparse, start_average
from cs336_systems.distributed.shards import Shard

MAX_UNDER_WAY = 2
"""Whole gradients that may be under way before the compute stream waits for the first."""


@dataclass
class ShardedTraffic:
    """Traffic of a step. The bytes are those of whole matrices, padded to a multiple of the ranks."""

    gathered: Traffic = field(default_factory=Traffic)
    scattered: Traffic = field(default_factory=Traffic)
    averaged: Traffic = field(default_factory=Traffic)
    """Gradients of replicated parameters."""


class Averages:
    """Gradients that are being averaged in a group of their own, which on CUDA is a stream of its own."""

    def __init__(self, group: dist.ProcessGroup):
        self.group, self.traffic = group, ShardedTraffic()
        self._under_way: deque[tuple[Shard, Average, Tensor]] = deque()

    def start(self, shard: Shard, gradient: Tensor) -> None:
        """Start to average a whole matrix's gradient at its owners."""
        with naming(f"average of {shard.name}"):
            average, mine, num_bytes = shard.start_average(gradient, self.group)
        self._under_way.append((shard, average, mine))
        self.traffic.scattered.add(num_bytes)
        self.complete(MAX_UNDER_WAY)

    @torch.no_grad()
    def complete(self, num_left: int = 0) -> None:
        """Add averages to the parameters' gradients, from the first on, until `num_left` are under way."""
        while len(self._under_way) > num_left:
            shard, average, mine = self._under_way.popleft()
            with naming(f"average of {shard.name}"):
                average.wait()
            if average.divisor > 1:
                mine.div_(average.divisor)
            gradient = shard.parameter.grad
            shard.parameter.grad = mine if gradient is None else gradient.add_(mine)

    @torch.no_grad()
    def average(self, parameters: Mapping[str, Tensor]) -> None:
        """Average the gradients of replicated parameters, those of one dtype and device together, and wait."""
        together: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for name, value in parameters.items():
            assert value.grad is not None
            refuse_sparse(name, value.grad)
            value.grad = value.grad.contiguous()
            together.setdefault((value.dtype, value.device), []).append(value.grad)
        for gradients in together.values():
            with naming(f"average of {', '.join(parameters)}"):
                average = start_average(gradients, self.group)
                average.wait()
            if average.divisor > 1:
                private.divide_each(gradients, average.divisor)
            self.traffic.averaged.add(sum(gradient.nbytes for gradient in gradients), len(average.works))

    def forget(self) -> None:
        """Drop averages that a failed backward left, some of which may never end."""
        self._under_way.clear()
