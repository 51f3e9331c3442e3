"""Gradient checkpointing of a stack of layers: what a forward keeps, and what its backward recomputes.

The layers form groups of `every`. A forward keeps nothing inside a group but its input; the backward runs the group
again before it differentiates it. The last group keeps everything, because the backward begins there.

groups: keep the inputs of all groups (Chen et al. 2016): N/k inputs and k layers' activations, one more forward.
selective: keep the result of every attention as well (its output and log-sum-exp, with ours). Recomputing a group then
    skips attention's forward, whose cost is quadratic in the sequence.
nested: f_k(x) = group_k(checkpoint(f_{k-1}, x)) keeps the model's input alone, the least that is possible, and
    recomputes a group once for each group above it.

Gradients are those without checkpoints to the bit: the same operations run on the same numbers, and dropout's random
states are restored. Accounting: `accounting.checkpointing`.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from cs336_systems import private
from cs336_systems.configs import Checkpointing
from cs336_systems.offload import Offload

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention that maps q, k, v (batch, num_heads, seq_len, head_dim) of one dtype to out, shaped like q."""

Run = Callable[[Tensor], Tensor]


def run_checkpointed(layers: Iterable[nn.Module], x: Tensor, *tables: Tensor, checkpointing: Checkpointing) -> Tensor:
    """Apply layers, each called as `layer(x, *tables)`, to x (batch, seq_len, d_model), for a backward."""
    layers = list(layers)
    every = checkpointing.every
    last = (len(layers) - 1) // every * every
    earlier = [functools.partial(_in_turn, layers[i : i + every], tables) for i in range(0, last, every)]
    if checkpointing.runs_hooks:
        x = _with_hooks(earlier, x, checkpointing)
    else:
        for group in earlier:
            x = checkpoint(group, x, use_reentrant=False)
    return _in_turn(layers[last:], tables, x)


def _in_turn(layers: Sequence[nn.Module], tables: Sequence[Tensor], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x, *tables)
    return x


@torch.compiler.disable(recursive=False)  # contexts and hooks stay in Python; each layer is compiled as before
def _with_hooks(groups: Sequence[Run], x: Tensor, checkpointing: Checkpointing) -> Tensor:
    offload = Offload() if checkpointing.offload else None
    with saved_tensors_hooks(offload.pack, offload.unpack) if offload else nullcontext():
        if checkpointing.mode == "nested":
            return _nested(groups, x)
        for group in groups:
            if offload:
                offload.begin_group()
            if checkpointing.mode == "selective":
                x = checkpoint(group, x, use_reentrant=False, context_fn=AttentionResults(offload).contexts)
            else:
                x = checkpoint(group, x, use_reentrant=False)
    return x


@torch.compiler.disable(recursive=False)
def _nested(groups: Sequence[Run], x: Tensor) -> Tensor:
    if not groups:
        return x

    def until_here(x: Tensor) -> Tensor:
        try:
            return groups[-1](_nested(groups[:-1], x))
        except RecursionError as error:
            raise RuntimeError(
                f"nested checkpoints are deeper than Python's recursion limit of {sys.getrecursionlimit()}; "
                "allowed: more layers in a group (checkpoint_every), or a higher sys.setrecursionlimit"
            ) from error

    return checkpoint(until_here, x, use_reentrant=False)


@torch.compiler.disable
def kept_attention(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention(q, k, v); in a group of "selective" checkpoints that runs again, the result that it kept.

    Runs uncompiled between the two compiled parts of its layer, since it depends on whether the group runs again. The
    result must not be changed in place.
    """
    attend = getattr(_running, "attend", None)
    return attention(q, k, v) if attend is None else attend(attention, q, k, v)


class AttentionResults:
    """Results of a group's attentions, kept from its forward for its recomputation and for their own backward.

    That backward needs q, k and v, which the recomputation provides, and other tensors, which are kept: out and lse
    (and the dropout's seed) with ours. Hooks for saved tensors tell the two apart.
    """

    def __init__(self, offload: Offload | None):
        self._pack: Callable[[Tensor], Any] = offload.pack if offload else _same
        self._unpack: Callable[[Any], Tensor] = offload.unpack if offload else _same
        self._outs: list[tuple[Any, bool]] = []  # and whether it requires a gradient
        self._random_states: list[tuple[Any, ...]] = []  # after it, for what draws next
        self._uses: list[int] = []
        self._inputs: dict[int, tuple[Tensor, ...]] = {}
        self._unused: dict[int, int] = {}

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of the group's forward and of its recomputation."""
        return _Attending(lambda: self._first), _Attending(self._again)

    def _first(self, attention: Attention, *inputs: Tensor) -> Tensor:
        call, given = len(self._outs), [(x, private.version(x)) for x in inputs]
        kept: list[tuple[Tensor, Any]] = []
        self._uses.append(0)

        def pack(tensor: Tensor) -> Any:
            for index, (one, version) in enumerate(given):
                if _are_same(tensor, one) and private.version(one) == version:  # attention may change it in place
                    self._uses[call] += 1
                    return call, index
            kept.append((tensor, self._pack(tensor)))
            return kept[-1][1]

        def unpack(packed: Any) -> Tensor:
            return self._input(*packed) if isinstance(packed, tuple) else self._unpack(packed)

        with saved_tensors_hooks(pack, unpack):
            out = attention(*inputs)
        saved = [packed for tensor, packed in kept if _are_same(tensor, out)]
        given.clear()  # autograd keeps `pack` as long as what it packed
        kept.clear()
        self._outs.append((saved[0] if saved else self._pack(out.detach()), out.requires_grad))
        self._random_states.append((torch.get_rng_state(), *get_device_states(*inputs)))
        return out

    def _again(self) -> Callable[..., Tensor]:
        calls: Iterator[tuple[int, tuple[Any, bool]]] = iter(enumerate(self._outs))

        def attend(_: Attention, *inputs: Tensor) -> Tensor:
            call, (out, requires_grad) = next(calls)
            if self._uses[call]:
                self._inputs[call], self._unused[call] = tuple(x.detach() for x in inputs), self._uses[call]
            on_cpu, *on_devices = self._random_states[call]
            torch.set_rng_state(on_cpu)
            set_device_states(*on_devices)
            return self._unpack(out).detach().requires_grad_(requires_grad)  # so that the same is saved after it

        return attend

    def _input(self, call: int, index: int) -> Tensor:
        if call not in self._inputs:
            raise RuntimeError(
                "the group of an attention was not recomputed before its backward, since nothing after it keeps a "
                "tensor; allowed with selective checkpoints: layers that do, such as a linear one"
            )
        tensor = self._inputs[call][index]
        self._unused[call] -= 1
        if not self._unused[call]:
            del self._inputs[call]
        return tensor


_running = threading.local()
"""`attend`: how attention runs in this thread; autograd recomputes in threads of its own."""


class _Attending:
    """Context that may be entered again, in which `kept_attention` calls what `make()` returns."""

    def __init__(self, make: Callable[[], Callable[..., Tensor]]):
        self._make = make

    def __enter__(self) -> None:
        self._before = getattr(_running, "attend", None)
        _running.attend = self._make()

    def __exit__(self, *_: object) -> None:
        _running.attend = self._before


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _are_same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() != 0 and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
