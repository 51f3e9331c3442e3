"""Averages over the ranks that a sharded model's gradients are under way to."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from cs336_systems import private
from cs336_systems.distributed.buckets import gradient_dtype
from cs336_systems.distributed.collectives import (
    AverageOfRows,
    Traffic,
    first_rows,
    grouped,
    naming,
    refuse_sparse,
    start_average,
    start_average_of_rows,
)
from cs336_systems.distributed.peer_copies import PeerCopies
from cs336_systems.distributed.shards import Shard
from cs336_systems.memory import laid_out_like, materialized

MAX_UNDER_WAY = 2
"""Matrices whose whole gradients may be under way at once. A compiled layer may have more, while no other has any."""


@dataclass
class ShardedTraffic:
    """Traffic of a step. The bytes are those of whole matrices, padded to a multiple of the ranks."""

    gathered: Traffic = field(default_factory=Traffic)
    scattered: Traffic = field(default_factory=Traffic)
    averaged: Traffic = field(default_factory=Traffic)
    """Gradients of replicated parameters."""


@dataclass
class _UnderWay:
    shards: list[Shard]
    average: AverageOfRows

    callback: weakref.ref[Callable[[], None]] | None = None
    """Callback of the backward that produced the gradient, which lives until that backward ends or fails."""


class Averages:
    """Gradients that are being averaged, those of matrices by `copies`, or else all by a group that nobody else uses.

    So on CUDA they have a stream of their own.
    """

    def __init__(self, group: dist.ProcessGroup | None, copies: PeerCopies | None = None):
        self.group, self.copies, self.traffic = group, copies, ShardedTraffic()
        self._under_way: deque[_UnderWay] = deque()

    def start(self, gradients: Mapping[Shard, Tensor]) -> None:
        """Start to average at their owners the gradients of whole matrices, from the backward that runs now.

        The matrices have one device and dtype of their parameters' gradients, and so have `gradients`. The average is
        complete when that backward has ended. If it fails, the average is dropped.
        """
        self._drop_failed()
        first = next(iter(gradients))
        exchange = self.copies.start_exchange if self.copies and self.copies.serve(first.parameter) else None
        self.complete(max(MAX_UNDER_WAY - len(gradients), 0))
        for shard, gradient in gradients.items():
            refuse_sparse(shard.name, gradient)
        with naming(f"average of {_names(gradients)}"):
            dtype = gradient_dtype(first.parameter)
            average = start_average_of_rows(list(gradients.values()), dtype, self.group, exchange)
        self._under_way.append(_UnderWay(list(gradients), average))
        self.traffic.scattered.add(average.num_bytes, len(average.works))
        self._complete_after_backward(self._under_way[-1])

    @torch.no_grad()
    def complete(self, num_left: int = 0) -> None:
        """Add averages to the parameters' gradients, from the first on, until at most `num_left` are under way."""
        while sum(len(each.shards) for each in self._under_way) > num_left:
            first = self._under_way.popleft()
            with naming(f"average of {_names(first.shards)}"):
                averaged = first.average.wait()
            for shard, rows in zip(first.shards, averaged, strict=True):
                parameter = shard.parameter
                mine = first_rows(rows, parameter.shape[0])
                parameter.grad = mine if parameter.grad is None else parameter.grad.add_(mine)
                private.call_post_accumulate_hooks(parameter, but=shard.refusal)

    @torch.no_grad()
    def average(self, parameters: Mapping[str, Tensor]) -> None:
        """Average the gradients of replicated parameters, those of one dtype and device together, and wait."""
        every = []
        for name, value in parameters.items():
            assert value.grad is not None
            refuse_sparse(name, value.grad)
            value.grad = materialized(value.grad)
            every.append(value.grad)
        for gradients in grouped(every, lambda gradient: (gradient.dtype, gradient.device)):
            with naming(f"average of {', '.join(parameters)}"):
                average = start_average(gradients, self.group)
                average.wait()
            if average.divisor > 1:
                private.divide_each(gradients, average.divisor)
            self.traffic.averaged.add(sum(gradient.nbytes for gradient in gradients), len(average.works))
        for value, gradient in zip(parameters.values(), every, strict=True):
            value.grad = laid_out_like(gradient, value)

    def forget(self) -> None:
        """Drop averages that a failed backward left, some of which may never end."""
        self._under_way.clear()

    def _complete_after_backward(self, last: _UnderWay) -> None:
        callback = partial(self.complete)
        last.callback = weakref.ref(callback)
        private.after_backward(callback)

    def _drop_failed(self) -> None:
        """Drop averages whose backward has ended without completing them."""
        self._under_way = deque(one for one in self._under_way if one.callback and one.callback() is not None)


def _names(shards: Iterable[Shard]) -> str:
    return ", ".join(shard.name for shard in shards)
