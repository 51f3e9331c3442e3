"""ZeRO stage 1 (Rajbhandari et al. 2020): every rank keeps the optimizer state of its share of the parameters."""

import inspect
import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems import private
from cs336_systems.checks import is_int, require_ordered
from cs336_systems.distributed.buckets import partition
from cs336_systems.distributed.collectives import Traffic, average_at, run_together, total_norm
from cs336_systems.distributed.process_group import (
    failing_together,
    from_all_ranks,
    global_rank,
    new_group_like,
    raise_first,
    refusing_together,
    require_member,
    tell,
)
from cs336_systems.distributed.replicas import verify_same_arguments, verify_same_tensors
from cs336_systems.distributed.shards import is_sharded
from cs336_systems.memory import holds_its_values
from cs336_systems.optimizer.loading import load_between_hooks


class ShardedOptimizer(torch.optim.Optimizer):
    """Shard the state of any optimizer over the ranks, by whole parameters.

    A step has three phases:
        Phase 1  average every gradient at its owner (`reduces_gradients` only)
        Phase 2  every owner updates its parameters
        Phase 3  every owner broadcasts its parameters

    By default data parallelism has averaged the gradients: its all-reduce (2P elements) and the broadcasts (P) add up
    to 3P. With `reduces_gradients` each rank brings its own gradients: reductions to the owners (P) and broadcasts (P)
    add up to 2P. A rank then drops the gradients that others own and, after the step, its own: the next backward would
    add to these on one rank alone. Both work with `torch.amp.GradScaler`: an overflow on one rank skips the step on all
    ranks. With `reduces_gradients` every rank has a loss scale of its own.

    All ranks of the group must construct it, add parameter groups and call `step` together. Without `reduces_gradients`
    a parameter that is frozen on some ranks is what its owner makes of it. If a step fails on any rank, the parameters
    are broadcast as their owners left them, before all ranks raise. Its own process group lives until
    `destroy_process_group`.

    Args:
        params: parameters or parameter groups, as for every torch optimizer.
        optimizer_cls: e.g. `torch.optim.AdamW`; it gets only this rank's parameters, and no closure.
        process_group: the ranks that share the state; None means all.
        reduces_gradients: average the gradients here; do not wrap the model in data parallelism then.
        **kwargs: arguments of the optimizer.

    Raises:
        RuntimeError: at construction, if another rank refuses its arguments; the same on every rank, if they have other
            parameter groups, strides or arguments, or if any has a parameter that the optimizer or `add_param_group`
            refuses, or its closure or its optimizer's step fails or, with `reduces_gradients`, it has a parameter
            without gradient or frozen there alone, a sparse gradient or a backward between clipping and the step;
            `state_dict()` on a rank that has not consolidated it since the last step.
        ValueError: at construction, a parameter with gaps or overlaps in memory, an optimizer whose step needs a
            closure, or a process group without this rank.
        TypeError: a set of parameters, whose order differs between ranks.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_cls: type[torch.optim.Optimizer],
        *,
        process_group: dist.ProcessGroup | None = None,
        reduces_gradients: bool = False,
        **kwargs: Any,
    ):
        self.process_group, self.reduces_gradients = process_group, reduces_gradients
        self.rank, self.world_size = dist.get_rank(process_group), dist.get_world_size(process_group)
        require_member(process_group)
        self.owners: dict[nn.Parameter, int] = {}
        """Maps a parameter to the rank of the group that keeps its state."""

        self.traffic = Traffic()
        """Traffic of the last step, without what ranks tell each other on the CPU."""

        self._sent, self._reduced = Traffic(), False
        self._changing: dict[nn.Parameter, bool] = {}  # whether its owner updates it, as all ranks know
        setattr(self, private.STEP_SUPPORTS_AMP_SCALING, reduces_gradients)
        self._consolidated: dict[Any, Any] | None = None
        with refusing_together(process_group):
            require_ordered(params)
            empty = optimizer_cls([{"params": []}], **kwargs)  # an empty group, because optimizers refuse to have none
            closure = inspect.signature(empty.step).parameters.get("closure")
            if closure is not None and closure.default is closure.empty:
                raise ValueError(
                    f"optimizer_cls={type(empty).__name__} was given, which minimizes a closure over all parameters; "
                    "allowed: an optimizer whose step needs gradients alone"
                )
            super().__init__(params, empty.defaults)
        device = next((parameter.device for parameter in self._parameters()), torch.device("cpu"))
        self._cpu_group = new_group_like(process_group, device, "gloo")
        self._name = f"{type(self).__name__} of {type(empty).__name__} with reduces_gradients={reduces_gradients}"
        self._verify_parameters()
        with failing_together(self._cpu_group):
            self._local = optimizer_cls([self._share_of(group) for group in self.param_groups], **kwargs)
        self.state = self._local.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters on every rank; the least loaded ranks own them. If any rank refuses, all stay as they were."""
        if not hasattr(self, "_local"):
            self._add(param_group)
            return
        num_groups, owners, state = len(self.param_groups), dict(self.owners), set(self.state)
        try:
            with failing_together(self._cpu_group):
                self._add(param_group)
                self._local.add_param_group(self._share_of(self.param_groups[-1]))
            self._verify_parameters()
        except RuntimeError:
            del self.param_groups[num_groups:], self._local.param_groups[num_groups:]
            self.owners = owners
            for parameter in self.state.keys() - state:  # of an optimizer that creates its state at once
                del self.state[parameter]
            raise

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters, which also abandons a step after `clip_grad_norm_`."""
        super().zero_grad(set_to_none)
        self._sent, self._reduced = Traffic(), False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update all parameters on all ranks; return the closure's result."""
        loss = None
        if closure is not None:
            with failing_together(self._cpu_group), torch.enable_grad():
                loss = closure()
        self._consolidated = None

        # Phase 1: average every gradient at its owner.
        self._check_gradients()
        if self._overflowed():
            self._end_step()
            return loss
        self._reduce_gradients()

        # Phase 2: update the parameters of this rank.
        error = self._update(**kwargs)

        # Phase 3: every owner broadcasts its parameters, also after an error, which would leave each rank with others.
        # Meanwhile the ranks tell each other of errors, and of changes in what has to be broadcast.
        changed = self._changed_here()
        is_new = changed != [self._owns(value) and known for value, known in self._changing.items()]
        told = tell([error is not None, is_new], self._cpu_group)
        self._broadcast([value for value, is_changing in self._changing.items() if is_changing])
        has_failed, is_new_anywhere = told()
        if is_new_anywhere:
            before, now = self._changing, tell(changed, self._cpu_group)()
            self._changing = dict(zip(self._parameters(), now, strict=True))
            self._broadcast([value for value, is_changing in self._changing.items() if is_changing > before[value]])
        if has_failed:
            raise_first(error, self._cpu_group)
        self.traffic = self._sent
        self._end_step()
        return loss

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their total norm is at most `max_norm`; return the norm before.

        After data parallelism this equals `torch.nn.utils.clip_grad_norm_`. With `reduces_gradients` it runs phase 1,
        which the next step then skips.
        """
        if not self.reduces_gradients:
            return nn.utils.clip_grad_norm_(list(self._parameters()), max_norm)
        self._check_gradients()
        self._reduce_gradients()
        owned = [parameter for parameter in self._owned(self._parameters()) if parameter.grad is not None]
        gradients = [value.grad for value in owned if value.grad is not None]
        norm = total_norm(gradients, self._parameters(), self.process_group)
        self._sent.add(norm.nbytes)
        nn.utils.clip_grads_with_norm_(owned, max_norm, norm)
        return norm

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the whole state on the CPU of rank `to` of the group. Every rank must call it.

        State that is no parameter's is what it is on that rank. Raises the same `ValueError` on every rank if any gives
        a rank outside of the group, or another one than the first.
        """
        every = from_all_ranks(to, self._cpu_group)
        for each in every:
            if not is_int(each) or not 0 <= each < self.world_size or each != every[0]:
                allowed = f"a rank of the group, 0 to {self.world_size - 1}, the same on every rank"
                raise ValueError(f"to={each!r} was given; allowed: {allowed}")
        owned = {
            number: {name: _on_cpu(value) for name, value in self.state[parameter].items()}
            for number, parameter in enumerate(self._parameters())
            if self._owns(parameter) and parameter in self.state
        }
        shares: list[Any] | None = [None] * self.world_size if self.rank == to else None
        dist.gather_object(owned, shares, dst=global_rank(self.process_group, to), group=self.process_group)
        if shares is not None:
            by_number = {number: state for share in shares for number, state in share.items()}
            whole = {parameter: by_number[n] for n, parameter in enumerate(self._parameters()) if n in by_number}
            self._consolidated = whole | {key: each for key, each in self.state.items() if not isinstance(key, Tensor)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the unsharded optimizer, which can load it, as can this class on any number of ranks."""
        if self._consolidated is None:
            raise RuntimeError(
                f"state_dict() on rank {self.rank}, which holds a part of the state; "
                "allowed: after consolidate_state_dict(to=this rank) on all ranks, before the next step"
            )
        share, self.state = self.state, defaultdict(dict, self._consolidated)
        try:
            return super().state_dict()
        finally:
            self.state = share

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the whole state on every rank; each keeps its share."""
        load_between_hooks(self, super().load_state_dict, state_dict, self._load_share)

    def _load_share(self, whole: dict[str, Any]) -> None:
        """Load the options, this rank's share of the parameters' state, and all other state."""
        self.state = self._local.state  # whatever happens below
        local = self._local.state_dict()["param_groups"]
        for group, local_group in zip(whole["param_groups"], local, strict=True):
            local_group.update(_options(group))
        numbers = [number for group in whole["param_groups"] for number in group["params"]]
        owned = [number for number, value in zip(numbers, self._parameters(), strict=True) if self._owns(value)]
        state = {index: whole["state"][number] for index, number in enumerate(owned) if number in whole["state"]}
        others = {key: whole["state"][key] for key in whole["state"].keys() - set(numbers)}
        self._local.load_state_dict({"state": state | others, "param_groups": local})
        self.state, self._consolidated = self._local.state, None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled, which would take this rank's share for the whole state."""
        raise TypeError(
            f"a {type(self).__name__} was given to copy or to pickle; allowed: its state_dict(), after "
            "consolidate_state_dict() on all ranks"
        )

    def _add(self, param_group: dict[str, Any]) -> None:
        """Add parameters here and choose their owners."""
        require_ordered(param_group)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            if is_sharded(parameter):
                raise ValueError(
                    f"a parameter of shape {list(parameter.shape)} was given that holds one rank's rows; "
                    "allowed: torch's own optimizer, whose state of a sharded model is sharded already"
                )
            if not _contiguous(parameter).is_contiguous():
                raise ValueError(
                    f"a parameter of shape {list(parameter.shape)} with strides {parameter.stride()} was given; "
                    "allowed: any order of dimensions, without gaps or overlaps"
                )
        for trained in (True, False):  # balanced separately, since frozen parameters have no state
            added = [parameter for parameter in group["params"] if parameter.requires_grad == trained]
            loads = [0] * self.world_size
            for parameter, owner in self.owners.items():
                loads[owner] += parameter.numel() if parameter.requires_grad == trained else 0
            owners = partition([parameter.numel() for parameter in added], loads)
            self.owners |= dict(zip(added, owners, strict=True))

    def _overflowed(self) -> bool:
        """Whether a `GradScaler` found an overflow on any rank. If none did, unscale the gradients."""
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if not isinstance(found_inf, Tensor):  # no scaler
            return False
        dist.all_reduce(found_inf, group=self.process_group)
        self._sent.add(found_inf.nbytes)
        if found_inf.item():
            return True
        if scale is not None:  # otherwise the user has called the scaler's `unscale_`
            gradients = [value.grad for value in self._parameters() if value.grad is not None]
            for device in {gradient.device for gradient in gradients}:
                private.divide_each([grad for grad in gradients if grad.device == device], scale.to(device))
        return False

    def _check_gradients(self) -> None:
        """Raise the same error on every rank unless each has all gradients that phase 1 needs."""
        if not self.reduces_gradients:
            return
        trained = [parameter.requires_grad for parameter in self._parameters()]
        flags = [*trained, *(not is_trained for is_trained in trained)]
        with failing_together(self._cpu_group, flags):
            if self._reduced:
                if any(parameter.grad is not None for parameter in self._parameters() if not self._owns(parameter)):
                    raise RuntimeError(
                        "a backward after clip_grad_norm_(); allowed: step() or zero_grad() between them"
                    )
                return
            missing = sum(parameter.grad is None for parameter in self._trained())
            if missing:
                raise RuntimeError(
                    f"{missing} parameters have no gradient; "
                    "allowed with reduces_gradients: a backward that reaches every parameter"
                )
            for parameter in self._trained():
                if parameter.grad is not None and parameter.grad.is_sparse:
                    raise ValueError(
                        f"a sparse gradient of shape {list(parameter.shape)} was given; allowed: dense gradients"
                    )
        if any(map(operator.and_, flags[: len(trained)], flags[len(trained) :])):  # trained here and frozen there
            self._verify_parameters()

    @torch.no_grad()
    def _reduce_gradients(self) -> None:
        if not self.reduces_gradients or self._reduced:
            return
        destinations = [(_gradient(parameter), self._owner(parameter)) for parameter in self._trained()]
        average_at(destinations, self.process_group)
        for gradient, _ in destinations:
            self._sent.add(gradient.nbytes)
        for parameter in self._parameters():
            if not (self._owns(parameter) and parameter.requires_grad):
                parameter.grad = None
        self._reduced = True

    def _end_step(self) -> None:
        """Drop averaged gradients, to which the next backward would add on their owners alone."""
        if self._reduced:
            for parameter in self._parameters():
                parameter.grad = None
        self._sent, self._reduced = Traffic(), False

    def _update(self, **kwargs: Any) -> Exception | None:
        """Step with this rank's parameters; return an error, which the other ranks must hear of.

        A scheduler may have edited the options, and the step may, too.
        """
        groups = list(zip(self.param_groups, self._local.param_groups, strict=True))
        try:
            for group, local in groups:
                local.update(_options(group))
            self._local.step(**kwargs)
            for group, local in groups:
                group.update(_options(local))
        except Exception as error:
            return error
        return None

    def _changed_here(self) -> list[bool]:
        """Return for each parameter whether this rank updates it: also one that was frozen after its backward."""
        return [
            self._owns(parameter) and (parameter.requires_grad or parameter.grad is not None)
            for parameter in self._parameters()
        ]

    def _broadcast(self, parameters: list[nn.Parameter]) -> None:
        sources = [(_contiguous(parameter), self._owner(parameter)) for parameter in parameters]
        run_together(dist.broadcast, sources, self.process_group)
        for parameter in parameters:
            self._sent.add(parameter.nbytes)

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._parameters() if parameter.requires_grad]

    def _verify_parameters(self) -> None:
        """Raise the same error on every rank unless all have the same groups; note which have to be broadcast."""
        options = "; ".join(", ".join(map(_described, sorted(_options(group).items()))) for group in self.param_groups)
        verify_same_arguments(f"{self._name}, {options}", self._cpu_group)
        numbers = itertools.count()
        named = [
            (f"parameter {next(numbers)} of group {number}", parameter)
            for number, group in enumerate(self.param_groups)
            for parameter in group["params"]
        ]
        verify_same_tensors(named, self._cpu_group, as_in_memory=True)  # they are broadcast as they lie there
        self._changing = {parameter: parameter.requires_grad for parameter in self._parameters()}

    def _owner(self, parameter: nn.Parameter) -> int:
        return global_rank(self.process_group, self.owners[parameter])

    def _parameters(self) -> Iterator[nn.Parameter]:
        for group in self.param_groups:
            yield from group["params"]

    def _owns(self, parameter: nn.Parameter) -> bool:
        return self.owners[parameter] == self.rank

    def _owned(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        return [parameter for parameter in parameters if self._owns(parameter)]

    def _share_of(self, group: dict[str, Any]) -> dict[str, Any]:
        return group | {"params": self._owned(group["params"])}


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: option for name, option in group.items() if name != "params"}


def _described(option: tuple[str, Any]) -> str:
    """Describe an option of a group as it is on every rank: a function's address, for one, is not."""
    name, value = option
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return f"{name}={value if isinstance(value, bool | int | float | str | tuple | None) else type(value).__name__}"


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _contiguous(tensor: Tensor) -> Tensor:
    """View the memory with its dimensions sorted by stride, which NCCL requires."""
    return tensor.detach().permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient as a contiguous view, in the parameter's memory layout, which is the same on every rank."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.stride() != parameter.stride() or not holds_its_values(gradient):
        gradient = parameter.grad = torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
    return _contiguous(gradient)
