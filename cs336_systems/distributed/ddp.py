"""Data parallelism four ways: every rank holds the whole model and a share of the batch; gradients are averaged.

    NaiveDDP       after the backward: one all-reduce per parameter, each waited for
    FlatDDP        after the backward: one all-reduce per dtype of all gradients, flattened
    OverlappedDDP  during the backward: one all-reduce per parameter, or per group of gradients that arrive together
    BucketedDDP    during the backward: one all-reduce per bucket of parameters

They differ only in what is reduced together and when it is launched. A step has three phases:

    Phase 1   loss = net(batch)                          checks that the previous step was finished
    Phase 2   loss.backward()                            a hook per gradient; overlapping strategies launch from it
    Phase 3   net.finish_gradient_synchronization()      launches the rest, waits, averages
              optimizer.step()
"""

import contextlib
import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems import private
from cs336_systems.distributed.buckets import (
    Bucket,
    backward_groups,
    buckets_of,
    gradient_bytes,
    gradient_dtype,
    merged_groups,
)
from cs336_systems.distributed.collectives import (
    Average,
    Traffic,
    naming,
    refuse_sparse,
    require_floating,
    start_average,
)
from cs336_systems.distributed.process_group import from_all_ranks, refusing_together, require_member
from cs336_systems.distributed.replicas import (
    Wrapper,
    broadcast,
    refuse_renormalization,
    refuse_without_values,
    verify_same_arguments,
    verify_same_model,
)
from cs336_systems.distributed.shards import refuse_sharded
from cs336_systems.memory import laid_out_like, materialized


@dataclass
class _Launched:
    number: int
    """Index of the bucket."""

    average: Average
    gradients: list[Tensor]
    """Gradients at the launch, which a later hook may have replaced in the parameters."""

    flat: Tensor | None
    """Flattened copy that is reduced in place of the gradients."""

    is_complete: bool = False
    """Whether the gradients hold the average."""


class DataParallel(Wrapper):
    """Base of the four strategies. Construction checks that all ranks hold the same model and broadcasts rank 0's.

    Parameters, also frozen ones, and buffers are broadcast once. Every rank launches its collectives in the same order,
    whatever the order in which gradients arrive: a bucket waits for all buckets before it.

    Args:
        module: the same on every rank except for its values; available as `.module`.
        process_group: the ranks that average; None means all.
        broadcast_buffers: also broadcast rank 0's buffers before every forward in training mode.
        find_unused_parameters: allow parameters without a gradient, which may differ between ranks. A rank that did
            not use a parameter contributes zero; a parameter that no rank used keeps None. Costs one more all-reduce.
        communication_dtype: dtype that real gradients are rounded to for the all-reduce, e.g. torch.bfloat16.

    Register hooks of your own before wrapping: overlapping strategies send a gradient as soon as it exists, and its
    average replaces what a later hook assigns.

    Raises:
        RuntimeError: the ranks hold different models or wrap them with other arguments, or another rank refuses its
            own; a forward, copy, `state_dict()` or second backward before the last step was finished; a forward after
            the model was wrapped again; a parameter without gradient, unless allowed; a parameter frozen or unfrozen
            after wrapping; a collective that failed or timed out (the message names rank and parameters).
        ValueError: a parameter of another model that is wrapped, too; a parameter or buffer that is lazy, on the meta
            device or sparse; a sparse gradient; an embedding with max_norm; a communication_dtype that is not of
            floating point or below 16 bits, or any for complex parameters; a process group without this rank; loading
            with assign=True.
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
        require_member(process_group)
        with refusing_together(process_group):
            super().__init__(module)
            refuse_without_values(module)
            refuse_sharded(module)
            refuse_renormalization(module)
            require_floating(communication_dtype=communication_dtype)
            self._communication_dtype = communication_dtype
            trained = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
            self._names, self._trained = [name for name, _ in trained], [value for _, value in trained]
            self._check_rounding()
            self._use_buckets(self._buckets(self._trained))
        self.process_group = process_group
        self.traffic = Traffic()
        """Traffic of the last synchronization."""

        self._broadcast_buffers, self._find_unused = broadcast_buffers, find_unused_parameters
        self._frozen = [value for value in module.parameters() if not value.requires_grad]
        self._dtypes = self._dtypes_now()
        self._synchronizing, self._accumulated = True, False
        verify_same_model(module, process_group)
        verify_same_arguments(self._arguments(), process_group)
        broadcast([*module.parameters(), *module.buffers()], process_group)
        self._listen()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds; a copy that is made under `no_sync` is not under it."""
        self._require_finished("copy")
        return self.__dict__ | {"_synchronizing": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy, whose parameters have lost their hooks."""
        super().__setstate__(state)
        self._listen()

    def __deepcopy__(self, memo: dict[int, Any]) -> "DataParallel":
        """Copy everything but the process group."""
        memo[id(self.process_group)] = self.process_group
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module. Phase 1 of a step."""
        self._require_finished("forward")
        if self.is_replaced:
            raise RuntimeError("the model was wrapped again; allowed: its last wrapper")
        if not all(value.requires_grad for value in self._trained) or any(
            value.requires_grad for value in self._frozen
        ):
            raise RuntimeError("a parameter was frozen or unfrozen after the model was wrapped; allowed: wrap it again")
        if self._dtypes != (dtypes := self._dtypes_now()):
            self._dtypes = dtypes
            verify_same_model(self.module, self.process_group)
            self._regroup()
        self._forwarded |= torch.is_grad_enabled() and self._synchronizing
        if self._broadcast_buffers and self.module.training:
            broadcast(self.module.buffers(), self.process_group)
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients inside; the first backward outside sends the sum."""
        before, self._synchronizing = self._synchronizing, False
        try:
            yield
        finally:
            self._synchronizing = before

    def finish_gradient_synchronization(self) -> None:
        """Average the gradients of the last backward. Call it before `optimizer.step()`; a second call does nothing.

        Phase 3 of a step. A call after one that was interrupted finishes the synchronization.
        """
        if not self._arrived and not self._forwarded:
            if self._accumulated:
                raise RuntimeError(
                    "gradients were accumulated under no_sync() alone; allowed: the last backward outside it"
                )
            return
        unused = [index for index, parameter in enumerate(self._trained) if parameter.grad is None]
        for index in unused:  # every rank must make the same calls, so this one contributes zero
            parameter = self._trained[index]
            parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter))
        for number in range(len(self.buckets)):
            if number == len(self._launched):
                self._launch(number)
            if not self.overlaps:
                self._complete(self._launched[number])
        for launched in self._launched:
            self._complete(launched)
        num_users = self._count_users(unused) if self._find_unused and self._trained else None
        self.traffic, self._accumulated = self._sent, False
        self._start_step()
        self._synchronized()
        self._drop_unused(unused, num_users)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's state without a prefix, which the plain module can load."""
        self._require_finished("state_dict()")
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load the module's state; load the same on every rank."""
        if assign:
            raise ValueError("assign=True was given; allowed: False, because the parameters have hooks")
        return self.module.load_state_dict(state_dict, strict)

    def _arguments(self) -> str:
        """Describe the arguments that must be the same on every rank."""
        return (
            f"{type(self).__name__} with broadcast_buffers={self._broadcast_buffers}, "
            f"find_unused_parameters={self._find_unused}, communication_dtype={self._communication_dtype}"
        )

    def _check_rounding(self) -> None:
        for name, parameter in zip(self._names, self._trained, strict=True):
            if self._communication_dtype is not None and parameter.is_complex():
                given = f"communication_dtype={self._communication_dtype}"
                raise ValueError(f"{given} was given, but {name} is complex; allowed: real parameters, or None")

    def _buckets(self, parameters: list[nn.Parameter]) -> list[Bucket]:
        """Make one bucket per parameter, from the last to the first."""
        return [Bucket((index,), gradient_bytes([parameters[index]])) for index in reversed(range(len(parameters)))]

    def _dtypes_now(self) -> list[tuple[torch.dtype, torch.dtype]]:
        return [(value.dtype, gradient_dtype(value)) for value in self._trained]

    def _regroup(self) -> None:
        """Make buckets anew, whose gradients all have one dtype."""
        self._use_buckets(self._buckets(self._trained))

    def _synchronized(self) -> None:
        """Run after every synchronization, on every rank of the group."""

    def _use_buckets(self, buckets: list[Bucket]) -> None:
        self.buckets = buckets
        """Buckets in the order of their launch."""

        self._bucket_of = {index: number for number, bucket in enumerate(buckets) for index in bucket.indices}
        self._start_step()

    def _listen(self) -> None:
        self._own()
        on_gradient = weakref.WeakMethod(self._on_gradient)  # a strong reference would be a cycle through parameters
        for index, parameter in enumerate(self._trained):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: (on_gradient() or _ignore)(index))

    def _start_step(self) -> None:
        self._forwarded = False
        self._arrived: set[int] = set()
        self._num_missing = [len(bucket.indices) for bucket in self.buckets]
        self._launched: list[_Launched] = []
        self._sent = Traffic()

    def _on_gradient(self, index: int) -> None:
        """Note that a gradient has arrived and launch every bucket that is now complete. Phase 2 of a step."""
        if self.is_replaced:
            return
        if index in self._arrived:
            raise RuntimeError(
                f"a second gradient of {self._names[index]} arrived before finish_gradient_synchronization(); "
                "allowed: one backward a step, more under no_sync() before it, and checkpoints with use_reentrant=False"
            )
        if not self._synchronizing:
            self._accumulated = True
            return
        self._arrived.add(index)
        self._num_missing[self._bucket_of[index]] -= 1
        if self.overlaps:
            while len(self._launched) < len(self.buckets) and not self._num_missing[len(self._launched)]:
                self._launch(len(self._launched))

    def _launch(self, number: int) -> None:
        """Start to average a bucket's gradients over the ranks, in place or in a flattened copy."""
        bucket = self.buckets[number]
        gradients = [self._gradient(index) for index in bucket.indices]
        flat: Tensor | None = None
        if self.flattens or self._communication_dtype is not None:
            dtype = self._communication_dtype or gradients[0].dtype
            flat = torch.cat([gradient.flatten().to(dtype) for gradient in gradients])
        with self._naming(number):
            average = start_average(gradients if flat is None else [flat], self.process_group)
        self._sent.add(bucket.num_bytes if flat is None else flat.nbytes, len(average.works))
        self._launched.append(_Launched(number, average, gradients, flat))

    def _complete(self, launched: _Launched) -> None:
        """Wait for a bucket and write the average into its gradients, once."""
        if launched.is_complete:
            return
        with self._naming(launched.number):
            launched.average.wait()
        gradients, flat, divisor = launched.gradients, launched.flat, launched.average.divisor
        if flat is not None:
            if torch.promote_types(flat.dtype, gradients[0].dtype) != gradients[0].dtype:  # may not hold the sum
                flat.div_(divisor)
                divisor = 1
            parts = flat.split([gradient.numel() for gradient in gradients])
            copies = [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]
            private.copy_each(gradients, copies)
        if divisor > 1:
            private.divide_each(gradients, divisor)
        for index, gradient in zip(self.buckets[launched.number].indices, gradients, strict=True):
            self._trained[index].grad = laid_out_like(gradient, self._trained[index])
        launched.is_complete = True

    def _gradient(self, index: int) -> Tensor:
        gradient = self._trained[index].grad
        assert gradient is not None
        refuse_sparse(self._names[index], gradient)
        dense = materialized(gradient.to(gradient_dtype(self._trained[index])))  # any may come where that is None
        if dense is not gradient:
            self._trained[index].grad = dense
        return dense

    def _count_users(self, unused: list[int]) -> Tensor:
        """Count the ranks that have a gradient of each parameter."""
        num_users = torch.ones(len(self._trained), dtype=torch.int32, device=self._trained[0].device)
        num_users[unused] = 0
        dist.all_reduce(num_users, group=self.process_group)
        self._sent.add(num_users.nbytes)
        return num_users

    def _drop_unused(self, unused: list[int], num_users: Tensor | None) -> None:
        """Reset the zeros of parameters that no rank used to None; raise if unused parameters are not allowed."""
        for index in unused:
            if num_users is None or not num_users[index]:
                self._trained[index].grad = None
        if unused and num_users is None:
            names = ", ".join(self._names[index] for index in unused)
            raise RuntimeError(
                f"rank {dist.get_rank()}: no gradient for {names}; "
                "allowed: a backward that reaches every parameter, or find_unused_parameters=True"
            )

    def _require_finished(self, call: str) -> None:
        if self._arrived:
            raise RuntimeError(
                f"{call} before finish_gradient_synchronization() of the last backward; allowed: after it"
            )

    def _naming(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Name the all-reduce of a bucket in the message of an error raised inside."""
        bucket = self.buckets[number]
        names = ", ".join(self._names[index] for index in bucket.indices)
        return naming(f"all-reduce {number + 1} of {len(self.buckets)} ({bucket.num_bytes} bytes: {names})")


def _ignore(_: int) -> None:
    """Replace the hook of a wrapper that was deleted."""


class NaiveDDP(DataParallel):
    """After the backward, one all-reduce per parameter, each waited for."""


class FlatDDP(DataParallel):
    """After the backward, one all-reduce per dtype of all gradients, flattened: one copy in and one out."""

    flattens = True

    def _buckets(self, parameters: list[nn.Parameter]) -> list[Bucket]:
        return buckets_of(parameters, None)


class OverlappedDDP(DataParallel):
    """During the backward, one all-reduce per parameter as soon as its gradient and all gradients before it exist.

    The gradients of a compiled block arrive at once, so they travel at once. The first step finds such groups:
        Phase 1  the forward's graph shows which gradients one node produces
        Phase 2  the backward launches one all-reduce per parameter
        Phase 3  the ranks compare their groups and, if all agree, later steps launch one all-reduce per group
    If most gradients arrive in groups, neighbouring groups are merged too (`buckets.merged_groups`). No gradient is
    copied. With find_unused_parameters every parameter stays alone.
    """

    overlaps = True

    def __init__(self, module: nn.Module, **kwargs: Any):
        super().__init__(module, **kwargs)
        self._groups: list[Bucket] | None = None
        self._is_first_step = not self._find_unused

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module; in the first step, group its parameters by the output's graph."""
        output = super().forward(*inputs, **kwargs)
        if self._is_first_step and self._synchronizing and torch.is_grad_enabled():
            self._groups = backward_groups(output, self._trained)
        return output

    def _regroup(self) -> None:
        super()._regroup()
        self._is_first_step = not self._find_unused

    def _synchronized(self) -> None:
        if not self._is_first_step:
            return
        self._is_first_step = False
        every = from_all_ranks(self._groups, self.process_group)
        if self._groups is not None and all(groups == self._groups for groups in every):
            is_mostly_grouped = 2 * len(self._groups) <= len(self._trained)
            self._use_buckets(merged_groups(self._groups, self._trained) if is_mostly_grouped else self._groups)


class BucketedDDP(DataParallel):
    """During the backward, one all-reduce per bucket of at most `bucket_size_mb` MiB."""

    overlaps = True

    def __init__(self, module: nn.Module, bucket_size_mb: float | None = 25.0, **kwargs: Any):
        self.bucket_size_mb = bucket_size_mb
        super().__init__(module, **kwargs)

    def _buckets(self, parameters: list[nn.Parameter]) -> list[Bucket]:
        return buckets_of(parameters, self.bucket_size_mb)

    def _arguments(self) -> str:
        return f"{super()._arguments()}, bucket_size_mb={self.bucket_size_mb}"
