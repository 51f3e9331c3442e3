"""Matrices of which every rank keeps some rows, and the layers that need them whole."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils.hooks import RemovableHandle

from cs336_systems import private
from cs336_systems.differentiation import require_one_derivative
from cs336_systems.distributed.collectives import fill, first_rows, grouped, start_gathers
from cs336_systems.distributed.peer_copies import PeerCopies

SHARDED = {"Linear", "Embedding"}
"""Names of the classes whose weights are sharded: torch's, those derived from them, and the course's own."""

_IS_SHARDED = "_cs336_systems_is_sharded"
"""Attribute of parameters that hold rows, whatever becomes of the wrapper that took them."""


class Shard:
    """This rank's rows of a matrix, and the memory in which the whole matrix comes and goes.

    Rank r keeps rows r * num_rows to (r + 1) * num_rows, the last ranks fewer or none. The parameter stays the same
    object, so modules that share it still do. Graphs hold aliases of the whole matrix, whose memory is emptied after
    a layer's forward and filled again for its backward.
    """

    def __init__(self, name: str, parameter: nn.Parameter, group: dist.ProcessGroup | None):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        self.name, self.parameter, self.shape = name, parameter, parameter.shape
        self.num_rows = -(-self.shape[0] // size)
        """Rows of every rank but the last ones."""

        self.rows = slice(rank * self.num_rows, (rank + 1) * self.num_rows)
        self.is_gathered = False
        self.users: set[Any] = set()
        """Forwards and backwards that need the whole matrix now."""

        self.refusal: RemovableHandle | None = None
        """Hook that refuses a gradient of the whole matrix at the parameter."""

        self._outside: Tensor | None = None
        self._padded_rows = size * self.num_rows
        self._memory: Tensor | None = None
        self._mine: Tensor = parameter
        """This rank's share of the memory's rows."""

        self._works: list[Any] = []
        parameter.data = parameter.detach()[self.rows].clone(memory_format=torch.contiguous_format)  # as its gradients
        parameter.grad = None
        setattr(parameter, _IS_SHARDED, True)

    def whole(self) -> Tensor:
        """Return an alias of the gathered matrix, with a version of its own, which later gathers do not change."""
        assert self._memory is not None and self.is_gathered
        return first_rows(self._memory, self.shape[0]).data

    def outside(self) -> Tensor:
        """Return what the model sees in place of the matrix outside of its layer's forward."""
        mine = self.parameter
        if self._outside is None or (self._outside.dtype, self._outside.device) != (mine.dtype, mine.device):
            self._outside = private.without_elements(mine, self.shape, partial(refuse_direct_use, self.name))
        return self._outside

    def await_later(self, works: list[Any]) -> None:
        """Note the works of a gather that has been started, a list that all its matrices share."""
        self._works, self.is_gathered = works, True

    def wait(self) -> None:
        """Wait for the gather, unless another of its matrices has; on CUDA make the current stream wait."""
        while self._works:
            self._works.pop().wait()

    def free(self) -> None:
        """Empty the memory of the whole matrix, once its gather has ended."""
        assert self._memory is not None
        self.wait()
        self._memory.untyped_storage().resize_(0)
        self.is_gathered = False

    def forget(self) -> None:
        """Leave the memory to a gather that may never end, after an error."""
        self._memory, self._works, self.is_gathered = None, [], False
        self.users.clear()

    def gathered(self, group: dist.ProcessGroup | None) -> Tensor:
        """Gather a copy of the whole matrix in the parameter's dtype and wait for it."""
        copy = self.parameter.new_empty(self._padded_rows, *self.shape[1:], requires_grad=False)
        share = copy[self.rows]
        fill([share], [self.parameter])
        for work in start_gathers([(copy, share)], group):
            work.wait()
        return copy[: self.shape[0]]

    def allocate(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the memory of the whole matrix in `dtype`, and this rank's share of its rows; both padded."""
        device = self.parameter.device
        if self._memory is None or (self._memory.dtype, self._memory.device) != (dtype, device):
            with torch.inference_mode(False):  # a graph could not keep a tensor of the inference mode
                self._memory = torch.empty(self._padded_rows, *self.shape[1:], dtype=dtype, device=device)
                self._mine = self._memory[self.rows]
        else:
            self._memory.untyped_storage().resize_(self._memory.nbytes)
        return self._memory, self._mine


class _Whole(torch.autograd.Function):
    """Gathered matrices of a layer, whose gradients may still be averaged when the backward has ended."""

    @staticmethod
    def forward(
        ctx: Any, trained: Tensor, shards: Sequence[Shard], on_gradients: Callable[[Sequence[Tensor | None]], None]
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.on_gradients = on_gradients
        wholes = tuple(shard.whole() for shard in shards)
        frozen = [whole for whole, shard in zip(wholes, shards, strict=True) if not shard.parameter.requires_grad]
        ctx.mark_non_differentiable(*frozen)
        return wholes

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, None]:
        require_one_derivative("a fully sharded module", "the module itself")
        ctx.on_gradients(gradients)
        return None, None, None


def wholes_of(shards: Sequence[Shard], on_gradients: Callable[[Sequence[Tensor | None]], None]) -> dict[Shard, Tensor]:
    """Return aliases of gathered matrices; their gradients go to `on_gradients`, all at once."""
    is_trained = any(shard.parameter.requires_grad for shard in shards)
    trained = torch.empty(0, device="cpu", requires_grad=is_trained)
    return dict(zip(shards, _Whole.apply(trained, shards, on_gradients), strict=True))


def refuse_direct_use(name: str, *_: Any) -> None:
    """Raise the error of a matrix that is not whole."""
    raise RuntimeError(f"{name} was used outside of its layer's forward; allowed: inside it, where it is whole")


def gather(
    shards: Sequence[Shard], dtype: torch.dtype | None, group: dist.ProcessGroup | None, copies: PeerCopies | None
) -> tuple[int, int]:
    """Start to gather matrices in `dtype`, or each in its own; return the bytes of them whole, and the calls.

    They travel by `copies`, if it serves their device, or else by the group's collectives.
    """
    pairs = [shard.allocate(_cast_to(dtype, shard.parameter)) for shard in shards]
    fill([share for _, share in pairs], [shard.parameter for shard in shards])
    works: list[Any]
    if copies and copies.serve(pairs[0][0]):
        works = [copies.start_gathers([whole for whole, _ in pairs])]
    else:
        together = grouped(pairs, lambda pair: (pair[0].dtype, pair[0].device))
        works = [work for each in together for work in start_gathers(each, group)]
    for shard in shards:
        shard.await_later(works)
    return sum(whole.nbytes for whole, _ in pairs), len(works)


@dataclass(eq=False)
class Layer:
    """A module that needs matrices whole: a linear or embedding layer, or a module with those inside."""

    name: str
    module: nn.Module
    places: list[tuple[nn.Module, str, Shard]]
    """Module, attribute and matrix of each weight."""

    shards: list[Shard] = field(init=False)
    """The matrices, each once."""

    plain: list[nn.Module] = field(init=False)
    """The linear and embedding layers, unless compiled: their inputs and biases are cast as the weights are."""

    recomputes: bool = field(init=False)
    """Whether a checkpoint inside may run matrices' modules again in the backward, without this one's forward."""

    is_compiled: bool = field(init=False)
    is_guarded: bool = False
    """Whether the whole model runs, which must not see rows in place of a matrix."""

    _is_shown: bool = False
    _cast: list[tuple[nn.Module, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        owners = list(dict.fromkeys(owner for owner, _, _ in self.places))
        self.shards = list(dict.fromkeys(shard for _, _, shard in self.places))
        self.is_compiled = private.is_compiled(self.module)
        self.plain = [] if self.is_compiled else [owner for owner in owners if _is_of(SHARDED, owner)]
        self.recomputes = owners != [self.module]

    @property
    def reuses_weight(self) -> bool:
        """Whether the gradient of its weight may depend on the weight, as it does not in torch's own forwards."""
        forward = getattr(self.module.forward, "__func__", None)
        return self.is_compiled or forward not in (nn.Linear.forward, nn.Embedding.forward)

    def show(self, values: dict[Shard, Tensor], dtype: torch.dtype | None) -> None:
        """Let the module see whole matrices in place of its parameters, and the other parameters cast to `dtype`."""
        for owner, attribute, shard in self.places:
            if not private.holds(owner, attribute, shard.parameter):
                raise RuntimeError(
                    f"{shard.name} was replaced by another parameter; allowed: new values in the same one, "
                    "as load_state_dict without assign=True gives it"
                )
            owner.__dict__[attribute] = values[shard]  # found before the parameter of this name
        for owner in self.plain if dtype is not None else []:
            for attribute, parameter in owner.named_parameters(recurse=False):
                if attribute not in owner.__dict__:
                    owner.__dict__[attribute] = parameter.to(_cast_to(dtype, parameter))
                    self._cast.append((owner, attribute))
        self._is_shown = True

    def hide(self) -> None:
        """Let the module see its parameters again, except for a matrix that is guarded."""
        if self._is_shown:
            for owner, attribute in self._cast:
                owner.__dict__.pop(attribute, None)
            self._is_shown, self._cast = False, []
            self.guard(self.is_guarded)

    def guard(self, is_guarded: bool) -> None:
        """Begin or end to refuse the matrices' use while this module's forward does not run."""
        self.is_guarded = is_guarded
        for owner, attribute, shard in self.places:
            if is_guarded:
                owner.__dict__[attribute] = shard.outside()
            else:
                owner.__dict__.pop(attribute, None)


def _is_of(names: set[str], module: nn.Module) -> bool:
    return not names.isdisjoint(cls.__name__ for cls in type(module).__mro__)


def take_rows_when_loading(layers: Iterable[Layer]) -> None:
    """Let modules with sharded matrices load whole ones, after hooks of the modules around them have seen these."""
    places = {(owner, attribute): shard for layer in layers for owner, attribute, shard in layer.places}
    for (owner, attribute), shard in places.items():
        owner.register_load_state_dict_pre_hook(partial(_take_rows, attribute, shard))


def _take_rows(
    attribute: str, shard: Shard, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object
) -> None:
    whole = state_dict.get(prefix + attribute)
    if whole is not None and whole.shape == shard.shape:
        state_dict[prefix + attribute] = whole[shard.rows]


def _cast_to(dtype: torch.dtype | None, parameter: nn.Parameter) -> torch.dtype:
    """Return the dtype in which a layer sees a parameter: packed integers stay what they are."""
    return dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype


def is_sharded(parameter: nn.Parameter) -> bool:
    """Whether a parameter holds one rank's rows of a matrix."""
    return hasattr(parameter, _IS_SHARDED)


def refuse_gradient_hooks(matrices: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `ValueError` for a hook that wants a whole matrix's gradient, of which a rank gets its rows' average."""
    for name, parameter in matrices:
        if private.has_gradient_hooks(parameter):
            raise ValueError(
                f"{name} has a hook of register_hook; allowed: register_post_accumulate_grad_hook, "
                "which is called with this rank's rows when they are averaged"
            )


def refuse_sharded(module: nn.Module) -> None:
    """Raise `ValueError` if a parameter of `module` is sharded already."""
    for name, parameter in module.named_parameters():
        if is_sharded(parameter):
            raise ValueError(f"{name} was given as one rank's rows of it; allowed: a model that was not sharded before")


def matrices_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """Map the names of the weights of all linear and embedding layers to them, each once, by its first name."""
    matrices = set()
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        is_read_outside = isinstance(layer, NonDynamicallyQuantizableLinear)  # by nn.MultiheadAttention
        if _is_of(SHARDED, layer) and not is_read_outside and isinstance(weight, nn.Parameter) and weight.ndim >= 2:
            matrices.add(weight)
    return {name: value for name, value in module.named_parameters() if value in matrices and value.numel()}


def layers_of(module: nn.Module, shards: Sequence[Shard], together: Collection[nn.Module]) -> list[Layer]:
    """Return the layers of a model that hold `shards`: compiled modules and `together` as a whole, or the owners."""
    by_parameter = {shard.parameter: shard for shard in shards}

    def places(owners: Iterator[nn.Module]) -> list[tuple[nn.Module, str, Shard]]:
        return [
            (owner, attribute, by_parameter[parameter])
            for owner in owners
            for attribute, parameter in owner.named_parameters(recurse=False, remove_duplicate=False)
            if parameter in by_parameter
        ]

    layers: dict[nn.Module, Layer] = {}

    def visit(name: str, owner: nn.Module) -> None:
        is_whole = private.is_compiled(owner) or owner in together
        found = places(owner.modules() if is_whole else iter([owner]))
        if found and owner not in layers:
            layers[owner] = Layer(name, owner, found)
        if not is_whole:
            for child, inner in owner.named_children():
                visit(f"{name}.{child}" if name else child, inner)

    visit("", module)
    return list(layers.values())
