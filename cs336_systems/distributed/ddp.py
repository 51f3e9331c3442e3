"""Data parallelism four ways: every rank has the whole model and its part of the batch; gradients are averaged.

    NaiveDDP       after the backward, one all-reduce for each parameter, one after the other
    FlatDDP        after the backward, one all-reduce of everything (for each dtype), flattened
    OverlappedDDP  during the backward, one all-reduce for each parameter, from the last to the first; those of
                   compiled blocks launched together, as many as the rest of the backward hides
    BucketedDDP    during the backward, one all-reduce for each bucket of parameters

They differ in what is reduced together and when it is launched, and in nothing else:

    loss = net(batch)                           # checks that the last step was finished
    loss.backward()                             # a hook for each gradient; overlapping ones launch from it
    net.finish_gradient_synchronization()       # launches what is left, waits, averages
    optimizer.step()
"""

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.distributed.buckets import Bucket, buckets_of, grown, made_together
from cs336_systems.distributed.collectives import Average, Traffic, start_average
from cs336_systems.distributed.replicas import broadcast, verify_same_model
from cs336_systems.private import training as private


@dataclass
class _Launched:
    bucket: Bucket
    average: Average
    flat: Tensor | None
    """The buffer that was reduced in place of the gradients."""

    is_complete: bool = False
    """The gradients hold the average."""


class DataParallel(nn.Module):
    """What all four share. At the start it checks that all ranks hold the same model, and takes rank 0's values.

    Parameters and buffers are broadcast once, frozen ones too. Collectives are launched in one order on every rank,
    whatever the order in which gradients arrive: a bucket waits for those before it.

    Args:
        module: the same on every rank but for its values; reachable as `.module`.
        process_group: whose ranks average; all if None.
        broadcast_buffers: take rank 0's buffers before every forward in training too.
        find_unused_parameters: parameters may get no gradient in a step, and others on other ranks; a rank that did not
            use one counts as zero, and one that nobody used keeps None. One more call a step.
        communication_dtype: what gradients are rounded to for the journey, e.g. torch.bfloat16.

    Raises:
        RuntimeError: different models; a forward, `state_dict()` or second backward before the last step was finished;
            a parameter without gradient, unless it may; parameters frozen or thawed since; a collective that failed or
            timed out, with its rank and parameters.
        ValueError: a sparse gradient.
    """

    overlaps = False
    flattens = False

    def __init__(
        self,
        module: nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        broadcast_buffers: bool = False,
        find_unused_parameters: bool = False,
        communication_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.module, self.process_group = module, process_group
        self.traffic = Traffic()
        """Of the last synchronization."""

        self._broadcast_buffers, self._find_unused = broadcast_buffers, find_unused_parameters
        self._communication_dtype = communication_dtype
        trained = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        self._names, self._trained = [name for name, _ in trained], [value for _, value in trained]
        self._frozen = [value for value in module.parameters() if not value.requires_grad]
        self._synchronizing, self._accumulated = True, False
        self._take(self._buckets(self._trained))
        verify_same_model(module, process_group)
        broadcast([*module.parameters(), *module.buffers()], process_group)
        on_gradient = weakref.WeakMethod(self._on_gradient)  # else the parameters held this wrapper, and it them
        for index, parameter in enumerate(self._trained):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: (on_gradient() or _nothing)(index))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's."""
        self._require_finished("forward")
        if not all(value.requires_grad for value in self._trained) or any(
            value.requires_grad for value in self._frozen
        ):
            raise RuntimeError("a parameter was frozen or thawed after the model was wrapped; allowed: wrap it again")
        self._forwarded |= torch.is_grad_enabled() and self._synchronizing
        if self._broadcast_buffers and self.module.training:
            broadcast(self.module.buffers(), self.process_group)
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside only accumulate; the first one outside sends the sum."""
        before, self._synchronizing = self._synchronizing, False
        try:
            yield
        finally:
            self._synchronizing = before

    def finish_gradient_synchronization(self) -> None:
        """Average what the last backward left; call it before `optimizer.step()`. A second call does nothing."""
        if not self._arrived and not self._forwarded:
            if self._accumulated:
                raise RuntimeError(
                    "gradients were accumulated under no_sync() alone; allowed: the last backward outside it"
                )
            return
        unused = [index for index, parameter in enumerate(self._trained) if parameter.grad is None]
        for index in unused:  # a zero from this rank, so that every rank makes the same calls
            self._trained[index].grad = torch.zeros_like(self._trained[index])
        for number in range(len(self.buckets)):
            if number == len(self._launched):
                self._launch(number)
            if not self.overlaps:
                self._complete(self._launched[number])
        for launched in self._launched:
            self._complete(launched)
        users = self._count_users(unused) if self._find_unused and self._trained else None
        self.traffic, self._accumulated = self._sent, False
        self._start_step()
        self._forget(unused, users)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, without a prefix: it loads into the plain module."""
        self._require_finished("state_dict()")
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own; load the same on every rank."""
        return self.module.load_state_dict(*args, **kwargs)

    def _buckets(self, parameters: list[nn.Parameter]) -> list[Bucket]:
        """One for each parameter, from the last to the first."""
        return [Bucket((index,), parameters[index].nbytes) for index in reversed(range(len(parameters)))]

    def _take(self, buckets: list[Bucket]) -> None:
        self.buckets = buckets
        """In the order of their launch."""

        self._bucket_of = {index: number for number, bucket in enumerate(buckets) for index in bucket.indices}
        self._start_step()

    def _start_step(self) -> None:
        self._forwarded = False
        self._arrived: set[int] = set()
        self._missing_in = [len(bucket.indices) for bucket in self.buckets]
        self._launched: list[_Launched] = []
        self._sent = Traffic()

    def _on_gradient(self, index: int) -> None:
        if index in self._arrived:
            raise RuntimeError(
                f"a second gradient of {self._names[index]} arrived before finish_gradient_synchronization(); "
                "allowed: one backward a step, more under no_sync() before it, and checkpoints with use_reentrant=False"
            )
        if not self._synchronizing:
            self._accumulated = True
            return
        self._arrived.add(index)
        self._missing_in[self._bucket_of[index]] -= 1
        if self.overlaps:
            while len(self._launched) < len(self.buckets) and not self._missing_in[len(self._launched)]:
                self._launch(len(self._launched))

    def _launch(self, number: int) -> None:
        """Start to average the gradients of a bucket over the ranks: in place, or in a flat copy."""
        bucket = self.buckets[number]
        gradients = [self._gradient(index) for index in bucket.indices]
        flat: Tensor | None = None
        if self.flattens or self._communication_dtype is not None:
            dtype = self._communication_dtype or gradients[0].dtype
            flat = torch.cat([gradient.flatten().to(dtype) for gradient in gradients])
        with self._naming(bucket):
            average = start_average(gradients if flat is None else [flat], self.process_group)
        self._sent.add(bucket.num_bytes if flat is None else flat.nbytes, len(average.works))
        self._launched.append(_Launched(bucket, average, flat))

    def _complete(self, launched: _Launched) -> None:
        """Wait, and bring the average back into the gradients; once, even if an earlier call was interrupted."""
        if launched.is_complete:
            return
        with self._naming(launched.bucket):
            launched.average.wait()
        gradients = [self._gradient(index) for index in launched.bucket.indices]
        if launched.flat is not None:
            parts = launched.flat.split([gradient.numel() for gradient in gradients])
            sums = [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]
            private.copy_each(gradients, sums)
        if launched.average.divisor > 1:
            private.divide_each(gradients, launched.average.divisor)
        launched.is_complete = True

    def _gradient(self, index: int) -> Tensor:
        gradient = self._trained[index].grad
        assert gradient is not None
        if gradient.is_sparse:
            raise ValueError(f"{self._names[index]} has a sparse gradient; allowed: dense ones")
        if not gradient.is_contiguous():
            gradient = self._trained[index].grad = gradient.contiguous()
        return gradient

    def _count_users(self, unused: list[int]) -> Tensor:
        """How many ranks have a gradient of each parameter."""
        users = torch.ones(len(self._trained), device=self._trained[0].device)
        users[unused] = 0
        dist.all_reduce(users, group=self.process_group)
        self._sent.add(users.nbytes)
        return users

    def _forget(self, unused: list[int], users: Tensor | None) -> None:
        """Take back the zeros of what nobody used; raise if nothing may be unused."""
        for index in unused:
            if users is None or not users[index]:
                self._trained[index].grad = None
        if unused and users is None:
            names = ", ".join(self._names[index] for index in unused)
            raise RuntimeError(
                f"rank {dist.get_rank()}: no gradient for {names}; "
                "allowed: a backward that reaches every parameter, or find_unused_parameters=True"
            )

    def _require_finished(self, what: str) -> None:
        if self._arrived:
            raise RuntimeError(
                f"{what} before finish_gradient_synchronization() of the last backward; allowed: after it"
            )

    @contextlib.contextmanager
    def _naming(self, bucket: Bucket) -> Iterator[None]:
        """Errors inside say which rank and which all-reduce."""
        try:
            yield
        except RuntimeError as error:
            where = f"rank {dist.get_rank()}: all-reduce {self.buckets.index(bucket) + 1} of {len(self.buckets)}"
            names = ", ".join(self._names[index] for index in bucket.indices)
            why = (str(error).strip().splitlines() or [""])[0]
            raise RuntimeError(f"{where} ({bucket.num_bytes} bytes: {names}) failed: {why}") from error


def _nothing(_: int) -> None:
    """What is left of a hook whose wrapper is gone."""


class NaiveDDP(DataParallel):
    """After the backward, one all-reduce for each parameter, each waited for."""


class FlatDDP(DataParallel):
    """After the backward, one all-reduce of all gradients of a dtype, flattened: one call, one copy in and out."""

    flattens = True

    def _buckets(self, parameters: list[nn.Parameter]) -> list[Bucket]:
        return buckets_of(parameters, None)


class OverlappedDDP(DataParallel):
    """During the backward, one all-reduce for each parameter as soon as its gradient and those before it are there.

    From the second step on those are launched together that one node of the graph makes, which arrive at once: all of a
    compiled block. Where most come so, they are joined with their neighbours too (`buckets.grown`), the fewer the
    nearer the backward is to its end. No gradient is copied. The ranks compare their graphs for it once; where they
    differ, or parameters may be unused, every parameter stays by itself.
    """

    overlaps = True

    def __init__(self, module: nn.Module, **kwargs: Any):
        self._together: list[Bucket] | None = None
        self._synchronized = self._compared = False
        super().__init__(module, **kwargs)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's."""
        is_trained = torch.is_grad_enabled() and self._synchronizing and not self._find_unused
        if self._compared or not is_trained:
            return super().forward(*inputs, **kwargs)
        if self._synchronized:
            self._require_finished("forward")
            self._compare()
        output = super().forward(*inputs, **kwargs)
        if not self._compared:
            self._together = made_together(output, self._trained)
        return output

    def finish_gradient_synchronization(self) -> None:
        """As every strategy's."""
        is_first = self._together is not None and (self._forwarded or bool(self._arrived))
        try:
            super().finish_gradient_synchronization()
        finally:
            self._synchronized |= is_first

    def _compare(self) -> None:
        """Every rank comes here at its first forward after its first synchronization."""
        self._compared = True
        every: list[list[Bucket] | None] = [None] * dist.get_world_size(self.process_group)
        dist.all_gather_object(every, self._together, group=self.process_group)
        if self._together is not None and all(one == self._together for one in every):
            most_come_together = 2 * len(self._together) <= len(self._trained)
            self._take(grown(self._together, self._trained) if most_come_together else self._together)


class BucketedDDP(DataParallel):
    """During the backward, one all-reduce for each bucket of at most `bucket_size_mb` MiB."""

    overlaps = True

    def __init__(self, module: nn.Module, bucket_size_mb: float | None = 25.0, **kwargs: Any):
        self.bucket_size_mb = bucket_size_mb
        super().__init__(module, **kwargs)

    def _buckets(self, parameters: list[nn.Parameter]) -> list[Bucket]:
        return buckets_of(parameters, self.bucket_size_mb)
