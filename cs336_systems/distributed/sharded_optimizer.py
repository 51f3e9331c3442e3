"""ZeRO stage 1 (Rajbhandari et al. 2020): every rank keeps the optimizer's state of its share of the parameters."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_systems.distributed.buckets import partition
from cs336_systems.distributed.collectives import Traffic, average_at, run_together
from cs336_systems.distributed.process_group import failing_together, global_rank
from cs336_systems.private import training as private


class ShardedOptimizer(torch.optim.Optimizer):
    """Any optimizer, its state divided over the ranks by whole parameters.

    A step has three phases:
        Phase 1  average every gradient at its owner (`reduces_gradients` only)
        Phase 2  every owner updates its parameters
        Phase 3  every owner broadcasts them

    Gradients are those that data parallelism has averaged: an all-reduce (2P elements) and the broadcasts (P) make 3P.
    With `reduces_gradients` they are each rank's own: reductions to the owners (P) and the broadcasts (P) make 2P, and
    a rank drops the gradients that others own. A `torch.amp.GradScaler` works with both: a gradient that overflowed on
    one rank skips the step on all. With `reduces_gradients` each rank's scale is its own.

    All ranks of the group make it, add groups of parameters to it and call its step together.

    Args:
        params: as every optimizer takes them: parameters, or groups with options of their own.
        optimizer_cls: e.g. `torch.optim.AdamW`; it sees this rank's parameters alone, and no closure.
        process_group: whose ranks share the state; all if None.
        reduces_gradients: take each rank's own gradients; wrap the model in no data parallelism then.
        **kwargs: the optimizer's.

    Raises:
        RuntimeError: a parameter that the optimizer refuses, on every rank, whoever owns it; `state_dict()` on a rank
            that has not consolidated it since the last step; with `reduces_gradients`, a parameter without gradient, or
            a backward between clipping and the step.
        ValueError: a parameter that has gaps or overlaps in memory; an optimizer whose step needs a closure; a sparse
            gradient with `reduces_gradients`; a process group without this rank.
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
        if self.rank < 0:
            raise ValueError("a process_group without this rank was given; allowed: on its own ranks alone")
        self.owners: dict[nn.Parameter, int] = {}
        """Parameter -> the rank of the group that keeps its state."""

        self.traffic = Traffic()
        """Of the last step."""

        self._sent, self._reduced = Traffic(), False
        setattr(self, private.STEP_SUPPORTS_AMP_SCALING, reduces_gradients)
        self._consolidated: dict[int, Any] | None = None
        empty = optimizer_cls([{"params": []}], **kwargs)  # it refuses no group, but takes an empty one
        closure = inspect.signature(empty.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ValueError(
                f"optimizer_cls={type(empty).__name__} was given, which minimizes a closure over all parameters; "
                "allowed: an optimizer whose step needs gradients alone"
            )
        super().__init__(params, empty.defaults)
        with failing_together(process_group):
            self._local = optimizer_cls([self._share_of(group) for group in self.param_groups], **kwargs)
        self.state = self._local.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, on every rank; the new parameters go to the ranks that have least."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            if not _contiguous(parameter).is_contiguous():
                raise ValueError(
                    f"a parameter of shape {list(parameter.shape)} with strides {parameter.stride()} was given; "
                    "allowed: any order of dimensions, without gaps or overlaps"
                )
        for trained in (True, False):  # apart, since what is frozen has no state
            ours = [parameter for parameter in group["params"] if parameter.requires_grad == trained]
            loads = [0] * self.world_size
            for parameter, owner in self.owners.items():
                loads[owner] += parameter.numel() if parameter.requires_grad == trained else 0
            owners = partition([parameter.numel() for parameter in ours], loads)
            self.owners |= dict(zip(ours, owners, strict=True))
        if hasattr(self, "_local"):
            with failing_together(self.process_group):
                self._local.add_param_group(self._share_of(group))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's, for all parameters; a step may be given up after `clip_grad_norm_` by it."""
        super().zero_grad(set_to_none)
        self._sent, self._reduced = Traffic(), False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """One update of all parameters on all ranks; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._consolidated = None

        # Phase 1: average every gradient at its owner.
        if self._overflowed():
            return loss
        self._reduce_gradients()

        # Phase 2: update what this rank owns, by the options as they are now (a scheduler edits them).
        for group, local in zip(self.param_groups, self._local.param_groups, strict=True):
            local.update({name: option for name, option in group.items() if name != "params"})
        self._local.step(**kwargs)

        # Phase 3: everybody takes the owners' parameters.
        self._broadcast_parameters()
        self.traffic, self._sent, self._reduced = self._sent, Traffic(), False
        return loss

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their norm over all parameters is at most `max_norm`; returns the norm before.

        After data parallelism `torch.nn.utils.clip_grad_norm_` does the same. With `reduces_gradients` the gradients
        are averaged at their owners here, and the next step takes them as they are.
        """
        if not self.reduces_gradients:
            return nn.utils.clip_grad_norm_(list(self._parameters()), max_norm)
        self._reduce_gradients()
        owned = [parameter for parameter in self._owned(self._parameters()) if parameter.grad is not None]
        device = next(self._parameters()).device
        norm = nn.utils.get_total_norm([parameter.grad for parameter in owned])  # type: ignore[misc]
        square = norm.to(device, torch.float32) ** 2  # one dtype on all ranks, whatever each of them owns
        dist.all_reduce(square, group=self.process_group)
        self._sent.add(square.nbytes)
        nn.utils.clip_grads_with_norm_(owned, max_norm, square.sqrt())
        return square.sqrt()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Bring the whole state to rank `to` of the group, on the CPU; called by all ranks."""
        mine = {
            number: {name: _on_cpu(value) for name, value in self.state[parameter].items()}
            for number, parameter in enumerate(self._parameters())
            if self._owns(parameter) and parameter in self.state
        }
        every: list[Any] | None = [None] * self.world_size if self.rank == to else None
        dist.gather_object(mine, every, dst=global_rank(self.process_group, to), group=self.process_group)
        if every is not None:
            self._consolidated = {number: state for one in every for number, state in one.items()}

    def state_dict(self) -> dict[str, Any]:
        """What the optimizer would have without sharding, which loads into it, or here on any number of ranks."""
        if self._consolidated is None:
            raise RuntimeError(
                f"state_dict() on rank {self.rank}, which holds a part of the state; "
                "allowed: after consolidate_state_dict(to=this rank) on all ranks, before the next step"
            )
        groups, start = [], 0
        for group in self.param_groups:
            numbers = list(range(start, start + len(group["params"])))
            groups.append({name: option for name, option in group.items() if name != "params"} | {"params": numbers})
            start += len(numbers)
        return {"state": dict(sorted(self._consolidated.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The whole state, on every rank, of which each keeps its share."""
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        owned = self._owned(self._parameters())
        whole = {numbers[parameter]: index for index, parameter in enumerate(owned)}
        local = self._local.state_dict()["param_groups"]
        for group, mine in zip(state_dict["param_groups"], local, strict=True):
            mine.update({name: option for name, option in group.items() if name != "params"})
        state = {whole[number]: value for number, value in state_dict["state"].items() if number in whole}
        self._local.load_state_dict({"state": state, "param_groups": local})
        self.state, self._consolidated = self._local.state, None

    def _overflowed(self) -> bool:
        """Whether a `GradScaler` found an overflow on any rank; if not, the gradients are no longer scaled."""
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if not isinstance(found, Tensor):  # no scaler; or no gradient at all, which the reduction refuses
            return False
        dist.all_reduce(found, group=self.process_group)
        self._sent.add(found.nbytes)
        if found.item():
            return True
        if scale is not None:  # else the user has called the scaler's `unscale_`
            gradients = [value.grad for value in self._parameters() if value.grad is not None]
            for device in {gradient.device for gradient in gradients}:
                private.divide_each([one for one in gradients if one.device == device], scale.to(device))
        return False

    @torch.no_grad()
    def _reduce_gradients(self) -> None:
        if not self.reduces_gradients:
            return
        if self._reduced:
            if any(parameter.grad is not None for parameter in self._parameters() if not self._owns(parameter)):
                raise RuntimeError(
                    f"rank {self.rank}: a backward after clip_grad_norm_(); allowed: step() or zero_grad() between them"
                )
            return
        trained = [parameter for parameter in self._parameters() if parameter.requires_grad]
        missing = sum(parameter.grad is None for parameter in trained)
        if missing:
            raise RuntimeError(
                f"rank {self.rank}: {missing} parameters have no gradient; "
                "allowed with reduces_gradients: a backward that reaches every parameter"
            )
        destinations = [(_gradient(parameter), self._owner(parameter)) for parameter in trained]
        average_at(destinations, self.process_group)
        for gradient, _ in destinations:
            self._sent.add(gradient.nbytes)
        for parameter in self._parameters():
            if not (self._owns(parameter) and parameter.requires_grad):
                parameter.grad = None
        self._reduced = True

    def _broadcast_parameters(self) -> None:
        """Also what was frozen after its backward: an optimizer goes by the gradient."""
        changed = [value for value in self._parameters() if value.requires_grad or value.grad is not None]
        sources = [(_contiguous(parameter), self._owner(parameter)) for parameter in changed]
        run_together(dist.broadcast, sources, self.process_group)
        for parameter in changed:
            self._sent.add(parameter.nbytes)

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


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _contiguous(tensor: Tensor) -> Tensor:
    """The same memory with its dimensions in the order of their strides: NCCL takes it no other way."""
    return tensor.detach().permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Contiguous, and laid out as the parameter is, which is the same on every rank."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.is_sparse:
        raise ValueError(f"a sparse gradient of shape {list(gradient.shape)} was given; allowed: dense ones")
    if gradient.stride() != parameter.stride():
        gradient = parameter.grad = torch.empty_like(parameter).copy_(gradient)
    return _contiguous(gradient)
