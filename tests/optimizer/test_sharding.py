"""ZeRO stage 1 against the unsharded optimizer on 1 to 4 gloo ranks: bitwise equal weights."""

from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from cs336_systems.optimizer.master_weights import MasterWeightAdamW
from tests.distributed.ranks import spawn
from tests.optimizer.beside import Beside, assert_same, loss_of, network


def two_groups(model):
    matrices = (value for value in model.parameters() if value.ndim == 2)
    return [
        {"params": matrices, "lr": 0.03},
        {"params": [value for value in model.parameters() if value.ndim < 2], "weight_decay": 0.0},
    ]


FORMS = {
    "generator": nn.Module.parameters,
    "list": lambda model: list(model.parameters()),
    "named": nn.Module.named_parameters,
    "groups": two_groups,
}


def train_in_form(rank, form):
    Beside(params=FORMS[form]).train(range(3))


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("form", FORMS)
def test_parameters_come_in_any_form(world_size, form):
    spawn(train_in_form, world_size, form)


class HalvedSGD(torch.optim.SGD):
    """SGD whose step takes an additional argument."""

    def step(self, closure=None, *, halvings=0):
        for group in self.param_groups:
            torch._foreach_div_([value.grad for value in group["params"] if value.grad is not None], 2**halvings)
        return super().step(closure)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (
        torch.optim.Adagrad,
        {"lr": 0.1, "initial_accumulator_value": 0.5},
    ),  # creates its state at construction
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "adamw-foreach": (torch.optim.AdamW, {"foreach": True}),
    "adamw-fused": (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
    "adamw-bfloat16": (torch.optim.AdamW, {"lr": 0.01}),
    "masters-bfloat16": (MasterWeightAdamW, {"lr": 0.01}),
}


def train_with(rank, name):
    optimizer_cls, options = OPTIMIZERS[name]
    dtype = torch.bfloat16 if "bfloat16" in name else torch.float32
    Beside(optimizer_cls, make=lambda: network(dtype), **options).train(range(4))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_is_sharded(name):
    spawn(train_with, 3, name)


def train_with_changing_options(rank):
    beside = Beside(params=two_groups)
    schedulers = [CosineAnnealingLR(optimizer, T_max=6) for _, optimizer in beside.both]
    for step in range(4):
        beside.train([step])
        for scheduler in schedulers:
            scheduler.step()
    assert beside.sharded.param_groups[0]["lr"] == beside.plain.param_groups[0]["lr"] < 0.03 / 1.5

    def edit(model, optimizer, step):
        optimizer.param_groups[0] |= {"lr": 0.1 / step, "betas": (0.5, 0.9)}
        optimizer.param_groups[1]["weight_decay"] = 0.3

    beside.train(range(4, 7), edit)


def test_schedulers_and_edits_of_options_reach_every_parameter():
    spawn(train_with_changing_options, 3)


class FadingSGD(torch.optim.Optimizer):
    """SGD that counts its steps in its groups and divides its rate by the count."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for value in group["params"]:
                if value.grad is not None:
                    value.sub_(value.grad, alpha=group["lr"] / group["count"])


def train_with_options_of_the_optimizer(rank):
    beside = Beside(
        FadingSGD, lr=0.1, params=lambda model: [{"params": model[:4].parameters()}, {"params": model[5].weight}]
    )
    beside.train(range(3))
    assert [group["count"] for group in beside.sharded.param_groups] == [3, 3]
    beside.sharded.param_groups[0]["count"] = beside.plain.param_groups[0]["count"] = 10
    beside.train(range(3, 5))


def test_options_that_the_optimizer_changes_are_kept():
    spawn(train_with_options_of_the_optimizer, 3)


def thaw(rank):
    beside = Beside(params=lambda model: model[5].parameters())
    beside.train(range(2))
    for model, optimizer in beside.both:
        model[2].bias.requires_grad_(True)
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.05})
    beside.train(range(2, 4))
    for model, optimizer in beside.both:  # adds frozen parameters too
        model[0].bias.requires_grad_(False)
        optimizer.add_param_group({"params": [*model[0].parameters(), *model[3].parameters()]})
    beside.train(range(4, 6))
    for model, _ in beside.both:
        model[0].bias.requires_grad_(True)
    beside.train(range(6, 8))


@pytest.mark.parametrize("world_size", [2, 3])
def test_parameters_added_or_thawed_during_training_train_as_without_sharding(world_size):
    spawn(thaw, world_size)


def freeze_after_backward(rank):
    def freeze(model, optimizer, step):
        for parameter in model[0].parameters():
            parameter.requires_grad_(step == 0)

    beside = Beside()
    beside.train(range(1), freeze)
    for _ in range(2):  # without zero_grad the gradients remain, so an optimizer updates the frozen parameters
        for model, optimizer in beside.both:
            freeze(model, optimizer, 1)
            optimizer.step()
        assert_same(beside.model, beside.twin)


def test_what_is_frozen_after_its_backward_is_the_same_on_all_ranks():
    spawn(freeze_after_backward, 2)


def freeze_with_a_gradient_on_one_rank(rank, having):
    """Freeze every parameter after its backward, and keep their gradients on one rank alone."""
    model = network()
    sharded = ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    loss_of(model, 0).backward()
    model.requires_grad_(False)
    if rank != having:
        model.zero_grad()
    sharded.step()
    updated = [not torch.equal(*pair) for pair in zip(model.parameters(), network().parameters(), strict=True)]
    owned = [sharded.owners[parameter] == having for parameter in model.parameters()]
    assert updated == [owns and number != 3 for number, owns in enumerate(owned)]  # the fourth was frozen before
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("having", [0, 1])
def test_what_is_frozen_with_a_gradient_on_one_rank_is_the_same_on_all_ranks(having):
    first, second = spawn(freeze_with_a_gradient_on_one_rank, 2, having)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))


def clip(rank):
    norms = {}

    def clip_by(model, optimizer, step):
        most = 1e9 if step == 2 else 0.01
        if optimizer is beside.plain or step == 1:
            norms[optimizer] = nn.utils.clip_grad_norm_(model.parameters(), most)
        else:
            norms[optimizer] = optimizer.clip_grad_norm_(most)
        if optimizer is beside.plain:  # called second; all gradients are scaled, not only this rank's
            for ours, theirs in zip(beside.model.parameters(), model.parameters(), strict=True):
                assert ours.grad is theirs.grad is None or torch.equal(ours.grad, theirs.grad)

    beside = Beside(torch.optim.SGD, lr=1.0)
    for step in range(3):
        beside.train([step], clip_by)
        assert norms[beside.plain] == norms[beside.sharded] > 0.01


def test_gradients_are_clipped_as_without_sharding():
    spawn(clip, 2)


def step_with_closure(rank):
    beside = Beside()
    calls = []

    def closure_of(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            calls.append(optimizer)
            return loss

        return closure

    losses = [optimizer.step(closure_of(model, optimizer)) for model, optimizer in beside.both]
    assert losses[0] == losses[1] == loss_of(network(), 0)
    assert len(calls) == 2
    assert_same(beside.model, beside.twin)
    assert beside.sharded.step() is None

    beside = Beside(HalvedSGD, lr=0.1)
    for model, optimizer in beside.both:
        loss_of(model, 0).backward()
        optimizer.step(halvings=2)
    assert_same(beside.model, beside.twin)


def test_a_closure_is_evaluated_once_and_other_arguments_of_a_step_reach_the_optimizer():
    spawn(step_with_closure, 2)


def one_parameter(rank):
    beside = Beside(params=lambda model: [model[5].weight])
    beside.train(range(3))
    assert len(beside.sharded.state) == (rank == 0)
    beside.sharded.zero_grad()
    assert beside.model[5].weight.grad is None
    for model, optimizer in beside.both:
        optimizer.add_param_group({"params": model[0].weight})
    beside.train(range(3, 5))
    assert len(beside.sharded.state) == (rank < 2)


def test_more_ranks_than_parameters():
    spawn(one_parameter, 3)


def gradients_left(rank):
    beside = Beside()
    loss_of(beside.model, 0).backward()
    beside.sharded.step()
    kept = [value.grad is not None for value in beside.model.parameters() if value.requires_grad]
    beside.sharded.zero_grad(set_to_none=False)
    zeros = [not value.grad.any() for value in beside.model.parameters() if value.requires_grad]
    beside.sharded.zero_grad()
    return all(kept), all(zeros), any(value.grad is not None for value in beside.model.parameters())


def test_zero_grad_clears_all_gradients_whoever_owns_them():
    assert spawn(gradients_left, 2) == [(True, True, False)] * 2


def owners_on_two_ranks(rank):
    def parameters(*sizes, requires_grad=True):
        return [nn.Parameter(torch.zeros(size), requires_grad) for size in sizes]

    start, frozen, late = parameters(100, 10), parameters(1000, 1000, requires_grad=False), parameters(20, 5, 80)
    optimizer = ShardedOptimizer([*start[:1], *frozen, *start[1:]], torch.optim.SGD, lr=0.1)
    optimizer.add_param_group({"params": late})
    return [[optimizer.owners[parameter] for parameter in those] for those in (start, frozen, late)]


def test_what_is_added_goes_to_the_least_loaded_rank_and_frozen_parameters_are_no_load():
    assert spawn(owners_on_two_ranks, 2) == [[[0, 1], [0, 1], [1, 0, 1]]] * 2


def strided():
    """Build a model with a transposed matrix and a channels-last convolution."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.Flatten())
    net[0].weight = nn.Parameter(torch.randn(6, 8).T)
    return net.to(memory_format=torch.channels_last)


def strided_loss(model, step):
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step), device="cpu")
    return model(inputs.to(model[0].weight)).square().sum()


def train_strided(rank):
    beside = Beside(make=strided, loss_of=strided_loss)
    sent, broadcast = [], dist.broadcast

    def watched(tensor, *args, **kwargs):
        sent.append(tensor.is_contiguous())
        return broadcast(tensor, *args, **kwargs)

    with patch.object(dist, "broadcast", watched):
        beside.train(range(3))
    assert sent == [True] * 12  # NCCL refuses others
    assert not beside.model[0].weight.is_contiguous() and not beside.model[2].weight.is_contiguous()
    with pytest.raises(ValueError, match=r"shape \[2, 3\] with strides \(6, 2\) was given; allowed: any order"):
        ShardedOptimizer([nn.Parameter(torch.zeros(2, 6)[:, ::2])], torch.optim.SGD, lr=0.1)


def test_strides_of_any_order_are_broadcast_and_gaps_refused():
    spawn(train_strided, 2)


def train_in_pairs(rank):
    others = [dist.new_group([0, 1]), dist.new_group([0, 3])]  # of which the ranks of a pair are in unequal numbers
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    with pytest.raises(ValueError, match="a process_group without this rank was given"):
        ShardedOptimizer(network().parameters(), torch.optim.SGD, lr=0.1, process_group=pairs[1 - rank % 2])
    group = pairs[rank % 2]
    beside = Beside(process_group=group, make=lambda: network(seed=rank % 2))
    beside.train(range(3))
    beside.sharded.consolidate_state_dict(to=1)
    if dist.get_rank(group) == 1:
        assert beside.sharded.state_dict()["param_groups"] == beside.plain.state_dict()["param_groups"]
        assert len(beside.sharded.state_dict()["state"]) == 6
    for other in others:
        if dist.get_rank(other) >= 0:
            dist.destroy_process_group(other)
    Beside(process_group=group).train(range(1))
    Beside(process_group=dist.group.WORLD).train(range(1))
    return sorted(parameter.numel() for parameter in beside.sharded.state)


def test_sub_groups_share_among_themselves():
    shares = spawn(train_in_pairs, 4)
    assert sorted(shares[0] + shares[2]) == sorted(shares[1] + shares[3]) == [11, 11, 13, 55, 91, 143]
    assert shares[0] == shares[1]
