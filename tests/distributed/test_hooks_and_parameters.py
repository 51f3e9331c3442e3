"""What users do to a wrapped model's parameters: hooks, other parameters, packed and complex ones, and saved names."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from cs336_systems.distributed.ddp import BucketedDDP, FlatDDP, NaiveDDP, OverlappedDDP
from cs336_systems.distributed.fsdp import FullyShardedDataParallel
from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from tests.distributed.ranks import spawn
from tests.distributed.steps import error_of, seeded

WRAPPERS = (NaiveDDP, FlatDDP, OverlappedDDP, BucketedDDP, FullyShardedDataParallel)


def two_layers():
    return seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))


def step(net, batch):
    net(batch).pow(2).sum().backward()
    net.finish_gradient_synchronization()


def hook_gradients(rank):
    """Return the errors of hooks on whole gradients, and what hooks after the accumulation saw of averages."""
    model = two_layers()
    model[0].weight.register_hook(lambda gradient: gradient * 0)
    before = error_of(FullyShardedDataParallel, model)
    net, seen = FullyShardedDataParallel(two_layers()), []
    net.module[2].weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.clone()))
    step(net, torch.ones(2, 4) + rank)
    are_averages = [torch.equal(one, net.module[2].weight.grad) for one in seen]
    net.module[2].weight.register_hook(lambda gradient: gradient * 0)
    return before, are_averages, error_of(net, torch.ones(2, 4))


def test_hooks_after_the_accumulation_see_averaged_rows_and_others_are_refused():
    for before, are_averages, later in spawn(hook_gradients, 2):
        assert are_averages == [True]
        assert all("register_hook" in error for error in (before, later))


def replace_parameters(rank):
    """Return the errors of forwards with other parameters in the places of sharded ones."""
    errors = []
    for replace in (
        lambda net: net.module.load_state_dict(net.state_dict(), assign=True),
        lambda net: setattr(net.module[2], "weight", nn.Parameter(torch.zeros(4, 8))),
    ):
        net = FullyShardedDataParallel(two_layers())
        replace(net)
        errors.append(error_of(net, torch.ones(2, 4)))
    net = FullyShardedDataParallel(two_layers())
    zeros = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    errors.append(error_of(torch.func.functional_call, net, zeros, (torch.ones(2, 4),)))
    step(net, torch.ones(2, 4))
    return [*errors, error_of(ShardedOptimizer, net.parameters(), torch.optim.SGD)]


def test_parameters_that_the_wrapper_does_not_know_are_refused():
    for *replaced, of_rows in spawn(replace_parameters, 2):
        assert len(replaced) == 3 and all("was replaced" in error for error in replaced)
        assert "rows" in of_rows


class Packed(nn.Linear):
    """A frozen weight of integers, as quantized ones are."""

    def __init__(self):
        super().__init__(4, 4)
        self.weight = nn.Parameter(torch.arange(16, dtype=torch.int32).view(4, 4) * 1001, requires_grad=False)

    def forward(self, inputs):
        return inputs @ (self.weight.double() * 1e-4).to(inputs.dtype).t() + self.bias


def multiply_packed(rank):
    model = nn.Sequential(Packed(), nn.Linear(4, 2))
    expected = model[0].weight.detach().clone()
    net, seen = FullyShardedDataParallel(model, torch.bfloat16, together=[model]), []
    model[0].register_forward_pre_hook(lambda layer, _: seen.append(layer.weight.clone()))
    net(torch.ones(2, 4))
    return all(torch.equal(each, expected) for each in seen)


def test_a_compute_dtype_leaves_integers_as_they_are():
    assert spawn(multiply_packed, 2) == [True, True]


class Conjugating(nn.Module):
    """Gradients that autograd leaves to be conjugated, of a vector, to be negated, of a number, or without memory."""

    def __init__(self):
        super().__init__()
        self.vector = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.number = nn.Parameter(torch.tensor(2.0))
        self.sign = nn.Parameter(torch.ones(3))
        self.layer = nn.Linear(3, 3, dtype=torch.complex64)
        self.last = nn.Linear(3, 3, dtype=torch.complex64)

    def forward(self, inputs):
        turned = torch.complex(torch.ones(()), self.number).conj() * torch.tensor(1 + 2j)
        outputs = self.last(self.layer(inputs + 0j)) * turned * self.sign.sgn()
        return torch.view_as_real(outputs + self.vector.conj())


def average_conjugates(rank, world_size):
    """Return for each wrapper whether its gradients are the mean of one process's."""
    found = []
    batches = [torch.arange(6.0).view(2, 3) + number for number in range(world_size)]
    for wrap in (*WRAPPERS, lambda model: FullyShardedDataParallel(model, together=[model])):
        alone, model = seeded(Conjugating), seeded(Conjugating)
        net = wrap(model)
        step(net, batches[rank])
        (sum(alone(batch).pow(2).sum() for batch in batches) / world_size).backward()
        own = dict(model.named_parameters())
        for name, value in alone.named_parameters():
            expected = value.grad
            if own[name].shape != value.shape:
                expected = expected.chunk(world_size)[rank] if rank < len(expected.chunk(world_size)) else expected[:0]
            torch.testing.assert_close(own[name].grad.resolve_conj(), expected.resolve_conj(), rtol=1e-4, atol=1e-4)
        found.append(True)
    return found


def test_conjugated_and_negated_gradients_and_zeros_without_memory_are_averaged():
    assert spawn(average_conjugates, 2, 2) == [[True] * 6] * 2


def strided():
    """Build a model with a transposed matrix and a channels-last convolution."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.Flatten())
    net[0].weight = nn.Parameter(torch.randn(6, 8).T)
    return net.to(memory_format=torch.channels_last)


def layouts_of_gradients(rank):
    """Return for each wrapper whether the gradients of two steps are laid out as their parameters."""
    found = []
    for wrap in WRAPPERS:
        net = wrap(strided())
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            step(net, torch.ones(2, 6) + rank)
            found.append(all(value.grad.stride() == value.stride() for value in net.parameters()))
            optimizer.step()
    return found


def test_gradients_lie_in_memory_as_their_parameters_which_fused_optimizers_rely_on():
    assert spawn(layouts_of_gradients, 2) == [[True] * 2 * len(WRAPPERS)] * 2


class Prompted(nn.Module):
    """A frozen layer fed by a parameter, and a block that also returns one."""

    def __init__(self):
        super().__init__()
        self.prompt = nn.Parameter(torch.ones(2, 6))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.block = Returning()

    def forward(self, inputs):
        output, scale = self.block(torch.tanh(self.frozen(self.prompt)).mean(0) + inputs)
        return output * scale


class Returning(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 6), nn.Parameter(torch.ones(1))

    def forward(self, inputs):
        return self.layer(inputs), self.scale


def train_with_lasting_tensors(rank):
    """Return the numbers of hooks on parameters after steps, and forwards without a graph."""
    model = Prompted()
    net = FullyShardedDataParallel(model, together=[model.block])
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        step(net, torch.ones(3, 6))
        optimizer.step()
    with torch.no_grad():
        net(torch.ones(3, 6))
    return [len(value._backward_hooks or ()) for value in (model.prompt, model.block.scale)]


def test_no_hook_outlives_its_step():
    assert spawn(train_with_lasting_tensors, 2) == [[0, 0]] * 2


def save_wrapped(rank):
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(4, 8)), nn.Linear(8, 4))
    with torch.no_grad():
        for value in model.parameters():
            dist.broadcast(value, 0)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    around = nn.ModuleDict({"net": FullyShardedDataParallel(model)})
    states = model_state, outer = around["net"].state_dict(), around.state_dict(prefix="outer.")
    assert not any(value.requires_grad for state in states for value in state.values())
    return (
        all(torch.equal(model_state[name], value) for name, value in expected.items()),
        list(model_state) == list(expected),
        list(outer) == [f"outer.net.{name}" for name in expected],
    )


def test_a_hook_that_renames_what_is_saved_is_followed():
    assert spawn(save_wrapped, 2) == [(True, True, True)] * 2


class Named(nn.Module):
    """A weight, and a part whose name is that of a wrapper's."""

    def __init__(self):
        super().__init__()
        self.weight, self.module = nn.Parameter(torch.zeros(2)), nn.LayerNorm(2)


def load_around(rank, wrapper):
    around = nn.ModuleDict({"net": wrapper(Named())})
    around.load_state_dict({name: value + 1 for name, value in around.state_dict().items()})
    inner = around["net"].module
    return inner.weight.tolist(), inner.module.weight.tolist(), inner.module.bias.tolist()


@pytest.mark.parametrize("wrapper", [NaiveDDP, FullyShardedDataParallel])
def test_a_part_may_have_the_name_that_wrappers_use(wrapper):
    assert spawn(load_around, 2, wrapper) == [([1.0, 1.0], [2.0, 2.0], [1.0, 1.0])] * 2


class WideGradient(nn.Module):
    """Two bfloat16 matrices, the first with a float32 gradient, stored by columns."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Linear(2, 2, bias=False, dtype=torch.bfloat16) for _ in range(2))
        self.first.weight = nn.Parameter(self.first.weight.detach().T.contiguous().T)
        self.first.weight.grad_dtype = torch.float32

    def forward(self, x, uses_first=True):
        return self.second(x).sum() + (self.first(x).sum() if uses_first else 0)


def average_wide_gradients(rank):
    """Return the first matrix's averaged gradients, and how ranks with other dtypes of gradients are refused."""
    x, results = torch.tensor([[1.0, 1 + rank / 128]], dtype=torch.bfloat16), []  # a mean that bfloat16 does not hold
    for wrap in WRAPPERS:
        net = wrap(seeded(WideGradient))
        net(x).backward()
        net.finish_gradient_synchronization()
        results.append(net.module.first.weight.grad)
    unused = NaiveDDP(seeded(WideGradient), find_unused_parameters=True)
    unused(x * 2, rank == 0).backward()
    unused.finish_gradient_synchronization()
    model = seeded(WideGradient)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.0, reduces_gradients=True)
    model(x).backward()
    model.first.weight.grad = model.first.weight.grad.T.contiguous().T if rank else model.first.weight.grad.contiguous()
    norm = float(optimizer.clip_grad_norm_(1e9))
    if rank:
        model.first.weight.grad_dtype = torch.bfloat16
    return results, unused.module.first.weight.grad, norm, error_of(NaiveDDP, model)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="needs torch 2.13")
def test_gradients_of_another_dtype_than_their_parameters_are_averaged_in_it():
    whole = torch.tensor([[1, 1 + 1 / 256]] * 2)
    for rank, (results, unused, norm, error) in enumerate(spawn(average_wide_gradients, 2)):
        expected = [whole] * 4 + [whole[rank : rank + 1]]
        torch.testing.assert_close([*results, unused], [*expected, torch.ones(2, 2)], rtol=0, atol=0)
        assert norm == pytest.approx(8**0.5, abs=0.02)
        assert "float32" in error and "allowed: the same model on every rank" in error
