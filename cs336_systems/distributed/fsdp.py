"""Fully sharded data parallelism (ZeRO stage 3, Rajbhandari et al. 2020): every rank keeps some rows of every matrix.

Weights of linear and embedding layers are sharded by rows; all other parameters are replicated. A step:

    Phase 1   loss = net(batch)         a layer's weights are gathered before its forward and freed after it
    Phase 2   loss.backward()           and again for its backward; a gradient is averaged at its owners when it exists
    Phase 3   net.finish_gradient_synchronization()      averages replicated gradients
              optimizer.step()          of this rank's rows

The first step records in which order the layers are used. Later steps gather up to `prefetch` layers ahead, in the
forward as in the backward, and keep a matrix that the next layers need again. On CUDA gathers and averages are in two
streams: between the GPUs of one host those of `PeerCopies`, otherwise those of two process groups.
"""

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.hooks import RemovableHandle

from cs336_systems import private
from cs336_systems.checks import is_int
from cs336_systems.distributed.averages import Averages, ShardedTraffic
from cs336_systems.distributed.buckets import gradient_dtype, tensors_in
from cs336_systems.distributed.collectives import grouped, naming, require_floating, total_norm
from cs336_systems.distributed.low_precision import cast_inputs, let_norms_follow_inputs
from cs336_systems.distributed.order import Event, Order
from cs336_systems.distributed.peer_copies import NUM_BYTES
from cs336_systems.distributed.peers import copies_for
from cs336_systems.distributed.process_group import new_group_like, refusing_together, require_member
from cs336_systems.distributed.replicas import (
    Wrapper,
    broadcast,
    refuse_renormalization,
    refuse_without_values,
    verify_same_arguments,
    verify_same_model,
)
from cs336_systems.distributed.shards import (
    Layer,
    Shard,
    gather,
    layers_of,
    matrices_of,
    refuse_direct_use,
    refuse_gradient_hooks,
    refuse_sharded,
    take_rows_when_loading,
    wholes_of,
)


@dataclass(eq=False)
class _Use:
    """A layer's forward and the backward of its graph."""

    layer: Layer
    versions: list[int]
    """Versions of its matrices in the forward: how often torch has changed them in place."""

    nodes_before: list[Any]
    """Nodes of the graph that made its inputs, which run after the layer's whole backward. Empty once they tell it."""

    @property
    def in_backward(self) -> bool:
        return any(self in shard.users for shard in self.layer.shards)


class FullyShardedDataParallel(Wrapper):
    """Shard a model's linear and embedding weights over the ranks.

    Construction checks that all ranks hold the same model and starts from rank 0's values. Parameters stay the same
    objects with the same names, but hold rows: build the optimizer afterwards, or before its first step. Compile
    blocks before wrapping: a compiled module is gathered whole, as is one of `together`, every other layer by itself.
    The wrapper itself is not compiled. The output projection of `nn.MultiheadAttention` stays replicated.

    Clip with `clip_grad_norm_` of this class: torch's would scale each rank's rows by a norm of its own.

    Every backward adds averaged gradients, so accumulation needs no context; call `finish_gradient_synchronization`
    once, before the optimizer; a frozen model has nothing to finish. A parameter that no rank used keeps its gradient
    of None, and so does a sharded one in `backward(inputs=...)`, where autograd does not find it: call it without. All
    ranks must use the same layers in the same order. With `torch.amp`, use `ShardedGradScaler`, whose ranks agree about
    an overflow. The wrapper's own process groups live until `destroy_process_group`.

    Args:
        module: the same on every rank except for its values; available as `.module`.
        compute_dtype: dtype in which weights are gathered and inputs of linear layers are cast, e.g. torch.bfloat16.
            None keeps the parameters' dtype. Gradients are sent in their own dtype and summed in the wider of it and
            that of the parameter's `grad`. Torch's norms take their weights in the dtype of their inputs. Inputs and
            other parameters of a compiled block and of `nn.MultiheadAttention` are not cast: run these under autocast.
        prefetch: layers to gather ahead of the one that computes: 0, 1 or 2. Each takes memory; 2 is for gathers that
            take longer than a layer computes.
        together: modules whose matrices are gathered and averaged together, such as the blocks of a Transformer: fewer
            calls, which is faster where the host is slower than the GPU, for more memory.
        process_group: the ranks that share the model; None means all.
        copy_engines: whether the GPUs' copy engines gather weights and exchange gradients, which leaves all
            multiprocessors to the layers, instead of NCCL's kernels. None: where all ranks' GPUs are on one host and
            can share memory, and each rank sees them all. They need `outside_bytes` of memory.

    Raises:
        RuntimeError: the ranks hold different models, wrap them with different arguments or use layers in different
            orders; another rank refuses its arguments; a sharded weight used outside of its layer's forward while the
            model runs, or of this wrapper, changed between a forward and its backward, or replaced; a failed or timed
            out collective.
        ValueError: a model that was sharded before; a parameter or buffer that is lazy, on the meta device or sparse;
            an embedding with max_norm; a dtype that is not of floating point or below 16 bits; another prefetch; a
            module of `together` that is not in the model; copy engines where they cannot serve; a process group without
            this rank; a sparse gradient; a hook of `register_hook` on a sharded weight.
        TypeError: a wrapper that is copied or pickled.
    """

    def __init__(
        self,
        module: nn.Module,
        compute_dtype: torch.dtype | None = None,
        *,
        prefetch: int = 1,
        together: Iterable[nn.Module] = (),
        process_group: dist.ProcessGroup | None = None,
        copy_engines: bool | None = None,
    ):
        require_member(process_group)
        with refusing_together(process_group):
            refuse_sharded(module)
            super().__init__(module)
            refuse_without_values(module)
            refuse_renormalization(module)
            require_floating(compute_dtype=compute_dtype)
            matrices = matrices_of(module)
            refuse_gradient_hooks(matrices.items())
            for name, value in matrices.items():
                if value.is_complex() and compute_dtype is not None:
                    raise ValueError(f"compute_dtype={compute_dtype} was given, but {name} is complex; allowed: None")
            if not is_int(prefetch) or prefetch not in (0, 1, 2):
                raise ValueError(f"prefetch={prefetch!r} was given; allowed: 0, 1, 2")
            whole, names = list(together), {inner: name for name, inner in module.named_modules()}
            if others := [type(inner).__name__ for inner in whole if inner not in names]:
                raise ValueError(f"together has {', '.join(others)}, not in the model; allowed: modules of it")
        self.process_group = process_group
        self.compute_dtype, self.prefetch = compute_dtype, prefetch
        self.traffic = ShardedTraffic()
        """Traffic of the last step."""

        self.events: list[Event] = []
        """What happened in this step, or in the last one, in order: gather, compute, free or average, and of what."""

        verify_same_model(module, process_group)
        arguments = f"compute_dtype={compute_dtype}, prefetch={prefetch}, copy_engines={copy_engines!r}"
        if whole:
            arguments += f", together={sorted(names[inner] for inner in whole)}"
        verify_same_arguments(f"{type(self).__name__} with {arguments}", process_group)
        self._copies = copies_for(copy_engines, module.parameters(), process_group)
        device = next((value.device for value in module.parameters()), torch.device("cpu"))
        averaging = process_group if self._copies else new_group_like(process_group, device)
        self._averages = Averages(averaging, self._copies)
        self._order = Order(new_group_like(process_group, device, "gloo"))
        broadcast([*module.parameters(), *module.buffers()], process_group)
        self._shards = [Shard(name, value, process_group) for name, value in matrices.items()]
        sharded = {shard.parameter for shard in self._shards}
        self._replicated = {name: value for name, value in module.named_parameters() if value not in sharded}
        self._layers = {layer.name: layer for layer in layers_of(module, self._shards, set(whole))}
        take_rows_when_loading(self._layers.values())
        self._forwards: dict[Layer, _Use] = {}
        self._num_passes, self._is_finished = 0, True
        self._had_backward, self._had_gradients = False, False
        self._follows_inputs_alone = False  # whether the last backward gave no gradient of a trained model
        for layer in self._layers.values():
            before, after = self._hook(self._before_forward, layer), self._hook(self._after_forward, layer)
            layer.module.register_forward_pre_hook(before, with_kwargs=True)
            layer.module.register_forward_hook(after, with_kwargs=True)
        if compute_dtype is not None:
            compiled = [layer.module for layer in self._layers.values() if layer.is_compiled]
            inside = {inner for each in compiled for inner in each.modules()}
            let_norms_follow_inputs(inner for inner in module.modules() if inner not in inside)
            cast_inputs((owner for layer in self._layers.values() for owner in layer.plain), compute_dtype)
        for shard in self._shards:
            if shard.parameter.requires_grad:
                refuse = partial(refuse_direct_use, shard.name)
                shard.refusal = shard.parameter.register_post_accumulate_grad_hook(refuse)
        weak = weakref.WeakMethod(self._on_replicated_gradient)
        for value in self._replicated.values():
            if value.requires_grad:
                value.register_post_accumulate_grad_hook(lambda _: (weak() or _ignore)())
        self._own()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled, which would take this rank's rows for the model."""
        raise TypeError(
            f"a {type(self).__name__} was given to copy or to pickle; allowed: its state_dict(), called on all ranks"
        )

    @property
    def uses_copy_engines(self) -> bool:
        """Whether the GPUs' copy engines gather and exchange matrices."""
        return self._copies is not None

    @property
    def outside_bytes(self) -> int:
        """Memory of this rank's GPU in which the copy engines write, outside of torch's allocator."""
        return NUM_BYTES if self._copies else 0

    @torch.compiler.disable
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module. Phase 1 of a step."""
        self._end_pass()
        self._order.start((self._num_passes, self._follows_inputs_alone) if torch.is_grad_enabled() else "no graph")
        self._is_finished &= not torch.is_grad_enabled()
        refuse_gradient_hooks((shard.name, shard.parameter) for shard in self._shards)
        self._reach("forward with", ", ".join(sorted(map(str, {value.dtype for value in self._values()}))))
        try:
            self._guard(True)
            output = self.module(*inputs, **kwargs)
            if self._copies:
                self._copies.watch()
            return output
        finally:
            self._guard(False)

    def finish_gradient_synchronization(self) -> None:
        """Finish the averages of all backwards since the last call. Call it before `optimizer.step()`.

        Phase 3 of a step. A second call does nothing.
        """
        if self._is_finished:
            return
        trained = {name: value for name, value in self._replicated.items() if value.grad is not None}
        self._reach("average", ", ".join(trained))
        self._averages.average(trained)
        if self._copies:
            self._copies.watch()
        self._end_pass()
        self.traffic, self._averages.traffic = self._averages.traffic, ShardedTraffic()
        self._num_passes, self._follows_inputs_alone, self._is_finished = 0, False, True

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that the whole model's norm is at most `max_norm`; return the norm before.

        Calls `finish_gradient_synchronization`, since it takes the averages.
        """
        self.finish_gradient_synchronization()
        sharded = [shard.parameter.grad for shard in self._shards if shard.parameter.grad is not None]
        replicated = [value.grad for value in self._replicated.values() if value.grad is not None]
        norm = total_norm(sharded, self.parameters(), self._averages.group)
        norm = torch.hypot(norm, nn.utils.get_total_norm(replicated).to(norm))
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm)
        return norm

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Return the whole state without a prefix, which the plain module can load. All ranks must call it."""
        with naming("gather of the state"):
            whole: dict[Tensor, Tensor] = {
                shard.parameter: shard.gathered(self.process_group) for shard in self._shards
            }
        state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=True)
        for name in [name for name in state if name.startswith(prefix)]:  # also one that a hook has changed
            value = state[name]
            if isinstance(value, Tensor):
                state[name] = whole.get(value, value if keep_vars else value.detach())
        return state

    def sharded_state_dict(self) -> dict[str, Any]:
        """Return the state with this rank's rows, for a restart on the same number of ranks."""
        return self.module.state_dict()

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load a whole state, the same on every rank, or what `sharded_state_dict` returned on this rank."""
        if assign:
            raise ValueError("assign=True was given; allowed: False, because the parameters hold rows")
        return self.module.load_state_dict(state_dict, strict)

    def _hook(self, method: Callable[..., Any], layer: Layer) -> Callable[..., Any]:
        """Return a hook of the layer's module; a strong reference to `self` would be a cycle through the module."""
        weak = weakref.WeakMethod(method)

        def hook(module: nn.Module, *args: Any) -> Any:
            bound = weak()
            if bound is None or module is not layer.module:
                raise RuntimeError(
                    f"{layer.shards[0].name} holds one rank's rows, and was used in a copy of its model or without its "
                    "FullyShardedDataParallel; allowed: the wrapped model, while its wrapper exists"
                )
            return bound(layer, *args)

        return torch.compiler.disable(hook) if layer.is_compiled else hook

    def _values(self) -> Iterator[Tensor]:
        return itertools.chain((shard.parameter for shard in self._shards), self._replicated.values())

    def _guard(self, is_guarded: bool) -> None:
        for layer in self._layers.values():
            layer.guard(is_guarded)

    def _leave_layers(self) -> None:
        """Let all modules see their parameters again, also after a pass that raised or that a checkpoint broke off."""
        for layer in self._layers.values():
            layer.hide()
        self._guard(False)
        self._forwards.clear()

    def _before_forward(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Gather a layer's matrices and show them to its module."""
        if not layer.is_guarded and not private.is_in_backward():  # `.module` runs without this wrapper's forward
            self._guard(True)
        self._need(layer, layer)
        has_graph = torch.is_grad_enabled()
        nodes = [value.grad_fn for value in tensors_in([args, kwargs])] if has_graph and layer.recomputes else []
        use = self._forwards[layer] = _Use(layer, _versions(layer) if has_graph else [], list(filter(None, nodes)))
        self._show(use, self._on_gradients)

    def _show(self, use: _Use, on_gradients: Callable[[_Use, Sequence[Tensor | None]], None]) -> None:
        use.layer.show(wholes_of(use.layer.shards, partial(on_gradients, use)), self.compute_dtype)

    def _after_forward(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Free a layer's matrices and watch for its backward."""
        layer.hide()
        use = self._forwards.pop(layer)
        outputs = list(tensors_in(output))
        if torch.is_grad_enabled():
            self._watch(use, [value for value in tensors_in([args, kwargs]) if value.requires_grad], outputs)
        if outputs or not torch.is_grad_enabled():  # otherwise nothing tells when the backward begins
            self._release(layer, layer)

    def _watch(self, use: _Use, inputs: Sequence[Tensor], outputs: Iterable[Tensor]) -> None:
        """Set hooks for the begin of a layer's backward, and for its end where no gradient of a matrix tells it.

        They live as long as the graph: the ones at its outputs, which keep the use, by themselves, and those at inputs,
        which may be parameters, as long as the use.
        """
        if inputs or use.layer.reuses_weight:
            for value in map(private.base_of, outputs):
                if not value.is_leaf:  # a leaf's gradient does not pass through the layer
                    value.register_hook(lambda _: self._before_backward(use))
        if not any(shard.parameter.requires_grad for shard in use.layer.shards):
            weak = weakref.ref(use)
            handle = _on_gradients_of(inputs, lambda: self._after_backward(weak()))
            weakref.finalize(use, handle.remove).atexit = False

    def _before_backward(self, use: _Use) -> None:
        """Gather the matrices of a layer whose backward begins. Phase 2 of a step."""
        if _versions(use.layer) != use.versions:
            raise RuntimeError(
                f"{use.layer.name} was changed between its forward and its backward; "
                "allowed: optimizer.step() after the backwards of all forwards before it"
            )
        if not use.in_backward:
            self._had_backward = True
            self._need(use.layer, use)
            if use.layer.recomputes:
                with torch.enable_grad():
                    self._show(use, self._on_recomputed)

    def _after_backward(self, use: _Use | None) -> None:
        """Free a layer, unless its backward is recorded and has a backward itself, which needs the same matrices."""
        if use and use.in_backward and not torch.is_grad_enabled():
            self._release(use.layer, use, use.layer)  # a checkpoint may have broken off its second forward
            if not any(shard.users for shard in use.layer.shards):
                use.layer.hide()

    def _on_gradients(self, use: _Use, gradients: Sequence[Tensor | None]) -> None:
        """Free a layer and start to average the gradients of its matrices."""
        self._after_backward(use)
        self._average(use, gradients)

    def _on_recomputed(self, use: _Use, gradients: Sequence[Tensor | None]) -> None:
        """Start to average the gradients of a reentrant checkpoint inside a layer, which may have more of them.

        The layer stays whole until its backward ends. If its inputs do not tell that, the step's end does.
        """
        weak = weakref.ref(use)
        while use.nodes_before:
            use.nodes_before.pop().register_prehook(lambda _: self._after_backward(weak()))
        self._average(use, gradients)

    def _average(self, use: _Use, gradients: Sequence[Tensor | None]) -> None:
        """Start to average the gradients of a layer's matrices, those of the same dtypes together."""
        arrived = [(shard, each) for shard, each in zip(use.layer.shards, gradients, strict=True) if each is not None]
        for shard, _ in arrived:
            self._reach("average", shard.name)
        if arrived:
            self._had_gradients, self._is_finished = True, False
        for pairs in grouped(arrived, lambda pair: (gradient_dtype(pair[0].parameter), pair[1].dtype, pair[1].device)):
            self._averages.start(dict(pairs))

    def _on_replicated_gradient(self) -> None:
        self._had_gradients, self._is_finished = True, False

    def _need(self, layer: Layer, user: Any) -> None:
        """Gather a layer's matrices and, without waiting for them, those of the next layers."""
        self._reach("compute", layer.name)
        for needed in (layer, *self._next_layers()):
            missing = [shard for shard in needed.shards if not shard.is_gathered]
            if missing:
                self.events += [("gather", shard.name) for shard in missing]
                with naming(f"gather for {needed.name}"):
                    num_bytes, num_calls = gather(missing, self.compute_dtype, self.process_group, self._copies)
                self._averages.traffic.gathered.add(num_bytes, num_calls)
        with naming(f"gather for {layer.name}"):
            for shard in layer.shards:
                shard.users.add(user)
                shard.wait()
        self.events.append(("compute", layer.name))

    def _release(self, layer: Layer, *users: Any) -> None:
        """Free what nobody needs, now or in the next layers."""
        soon = {shard for following in self._next_layers() for shard in following.shards}
        for shard in layer.shards:
            shard.users.difference_update(users)
        self._free([shard for shard in layer.shards if not shard.users and shard not in soon])

    def _free(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            if shard.is_gathered:
                with naming(f"gather of {shard.name}"):
                    shard.free()
                self.events.append(("free", shard.name))

    def _next_layers(self) -> list[Layer]:
        names = itertools.islice(self._order.upcoming("compute"), self.prefetch)
        return [self._layers[name] for name in names]

    def _reach(self, kind: str, name: str) -> None:
        if not (self._num_passes or self._order.has_begun):
            self.events, self._averages.traffic = [], ShardedTraffic()
        try:
            self._order.reach(kind, name)
        except RuntimeError:
            self._abandon_pass()
            raise
        if kind == "average" and name:  # the last of a step may average nothing
            self.events.append((kind, name))

    def _end_pass(self) -> None:
        """Finish what is under way since the last forward, and forget the gradients that a failed backward left."""
        if self._order.has_begun:
            if not private.is_in_backward():  # a checkpoint may call this model again
                self._averages.forget()
            self._leave_layers()
            for shard in self._shards:
                shard.users.clear()
            self._free(self._shards)
            self._order.end()
            is_trained = any(value.requires_grad for value in self._values())
            self._follows_inputs_alone = self._had_backward and is_trained and not self._had_gradients
            self._num_passes += self._had_gradients
            self._had_backward, self._had_gradients = False, False

    def _abandon_pass(self) -> None:
        """Leave what is under way after an error, without waiting for ranks that may never take part."""
        self._leave_layers()
        for shard in self._shards:
            shard.forget()
        self._averages.forget()
        self._order.start(None)
        self._had_backward, self._had_gradients = False, False


def _on_gradients_of(tensors: Sequence[Tensor], callback: Callable[[], None]) -> RemovableHandle:
    """Call back when a backward has computed the gradients of all tensors that it differentiates.

    Of several with a leaf among them nothing tells that in `torch.autograd.grad`: then the step's end frees the layer.
    """
    if len(tensors) == 1:
        return tensors[0].register_hook(lambda _: callback())
    return register_multi_grad_hook([] if any(one.is_leaf for one in tensors) else tensors, lambda _: callback())


def _versions(layer: Layer) -> list[int]:
    return [private.version(shard.parameter) for shard in layer.shards]


def _ignore() -> None:
    """Replace the hook of a wrapper that was deleted."""
