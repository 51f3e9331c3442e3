"""Steps that are given up, fail or overlap leave a sharded model with the gradients of one process."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cs336_systems.distributed.fsdp import FullyShardedDataParallel
from tests.distributed.models import FEATURES_IN, FEATURES_OUT
from tests.distributed.ranks import spawn
from tests.distributed.steps import batch, error_of, finish, seeded


class _Fail(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("in the backward")


class Net(nn.Module):
    """Four linear layers and a norm; the backward fails after two of them if `fails`."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES_IN, 7), nn.Linear(7, 7)
        self.norm = nn.LayerNorm(7)
        self.third, self.last = nn.Linear(7, 7), nn.Linear(7, FEATURES_OUT)

    def forward(self, x, fails=False):
        x = self.second(self.first(x).tanh())
        return self.last(self.third(self.norm(_Fail.apply(x) if fails else x)).tanh())


def give_up(net, loss):
    """Run two steps of which only the second counts."""
    loss(net, 0).backward()
    net.zero_grad()
    loss(net, 1).backward()


def fail_and_retry(net, loss):
    assert error_of(loss(net, 0, fails=True).backward) == "ValueError: in the backward"
    net.zero_grad()
    loss(net, 1).backward()


def differentiate_an_input(net, loss):
    """Accumulate gradients on the way to an input, as a generator does in its discriminator."""
    loss(net, 0, requires_grad=True).backward()
    net.zero_grad(set_to_none=False)
    loss(net, 1, requires_grad=True).backward()
    loss(net, 2).backward()


def recompute_the_model(net, loss):
    """Run the model twice in a graph whose backward runs it again, with averages under way."""
    (loss(net, 0, checkpointed=True) + loss(net, 1, checkpointed=True)).backward()


def finish_between(net, loss):
    """Finish after each of two backwards, of which the second has its forward before the first finish."""
    first, second = loss(net, 0), loss(net, 1)
    first.backward()
    finish(net)
    second.backward()


def run_the_module(net, loss):
    """Run the wrapped module itself."""
    for step in range(2):
        loss(net, step, inside=Net.forward).backward()
        finish(net)


def run_a_replicated_layer(net, loss):
    """Run only a part of the wrapped module that has no matrix, after a whole step."""
    loss(net, 0).backward()
    finish(net)
    loss(net, 1, inside=lambda module, x: module.norm(x[:, :7])[:, :FEATURES_OUT]).backward()


def errors(rank, world_size, steps):
    """Map each parameter to the difference of its gradient from that of one process."""

    def loss(net, step, *, requires_grad=False, checkpointed=False, inside=None, **kwargs):
        share = (rank, world_size) if net is sharded else (0, 1)
        inputs, labels = batch(step, *share)
        run = partial(checkpoint, net, use_reentrant=False) if checkpointed else net
        if inside is not None:
            run = partial(inside, getattr(net, "module", net))
        return nn.functional.mse_loss(run(inputs.requires_grad_(requires_grad), **kwargs), labels)

    sharded, alone = FullyShardedDataParallel(seeded(Net, rank)), seeded(Net)
    for net in (sharded, alone):
        steps(net, loss)
        finish(net)
    found = {}
    for name, parameter in sharded.module.named_parameters():
        whole = alone.get_parameter(name).grad
        rows = whole if whole.ndim < 2 else whole.split(-(-len(whole) // world_size))[rank]
        found[name] = float((parameter.grad - rows).abs().max())
    return found


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("steps", [finish_between, run_the_module, run_a_replicated_layer])
def test_a_backward_without_a_forward_of_the_wrapper_since_the_last_finish_is_averaged(steps, world_size):
    for found in spawn(errors, world_size, world_size, steps):
        assert max(found.values()) < 1e-6, found


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("steps", [give_up, fail_and_retry, differentiate_an_input, recompute_the_model])
def test_only_gradients_that_were_thrown_away_are_missing(steps, world_size):
    for found in spawn(errors, world_size, world_size, steps):
        assert max(found.values()) < 1e-6, found
