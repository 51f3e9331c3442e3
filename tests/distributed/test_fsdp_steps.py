"""Steps that are given up, fail or overlap leave a sharded model with the gradients of one process."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cs336_systems.distributed.fsdp import FullyShardedDataParallel
from tests.distributed.models import FEATURES_IN, FEATURES_OUT
from tests.distributed.ranks import spawn
from tests.distributed.steps import backward, batch, counted, error_of, finish, gradient_errors, seeded


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


def fail_and_differentiate_an_older_graph(net, loss):
    older = loss(net, 1)
    assert error_of(loss(net, 0, fails=True).backward) == "ValueError: in the backward"
    net.zero_grad()
    older.backward()


def fail_and_differentiate_the_same_graph(net, loss):
    """Fail inside a layer's backward, then above it, and only then reach the end."""

    def fail_at(name):
        def hook(gradient):
            if name in failing:
                raise ValueError(f"at {name}")

        return lambda module, args, out: out.register_hook(hook) and None

    module, handles = getattr(net, "module", net), []
    for name in ("second", "first"):
        handles.append(module.get_submodule(name).register_forward_hook(fail_at(name)))
    failing, one = [], loss(net, 1)
    for name in ("second", "first"):
        failing[:] = [name]
        assert error_of(partial(one.backward, retain_graph=True)) == f"ValueError: at {name}"
        net.zero_grad()
    failing.clear()
    one.backward()
    for handle in handles:
        handle.remove()


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
    return gradient_errors(sharded, alone, rank, world_size)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("steps", [finish_between, run_the_module, run_a_replicated_layer])
def test_a_backward_without_a_forward_of_the_wrapper_since_the_last_finish_is_averaged(steps, world_size):
    for found in spawn(errors, world_size, world_size, steps):
        assert max(found.values()) < 1e-6, found


FORGETFUL = [
    give_up,
    fail_and_retry,
    fail_and_differentiate_an_older_graph,
    fail_and_differentiate_the_same_graph,
    differentiate_an_input,
    recompute_the_model,
]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("steps", FORGETFUL)
def test_only_gradients_that_were_thrown_away_are_missing(steps, world_size):
    for found in spawn(errors, world_size, world_size, steps):
        assert max(found.values()) < 1e-6, found


def change_before_the_backward(rank):
    """Return the errors of backwards whose weights an optimizer has changed since the forward, and of a step after."""
    net, errors = FullyShardedDataParallel(seeded(Net)), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    older, newer = (nn.functional.mse_loss(net(batch(0)[0]), batch(0)[1]) for _ in range(2))
    newer.backward()
    finish(net)
    optimizer.step()
    errors.append(error_of(older.backward))
    net.zero_grad()
    errors.append(error_of(nn.functional.mse_loss(net(batch(1)[0]), batch(1)[1]).backward))
    finish(net)
    return errors


def test_a_backward_with_weights_that_changed_after_its_forward_is_refused_as_torch_refuses_it():
    for older, later in spawn(change_before_the_backward, 2):
        assert older.startswith("RuntimeError: last was changed between its forward and its backward; allowed: ")
        assert later == "nothing"


def input_gradients(rank, frozen):
    """Return the differences from the plain model of an input's gradient and of a penalty's gradients, in two steps."""
    plain = seeded(Net)
    for name in frozen:
        plain.get_submodule(name).requires_grad_(False)
    net, found = FullyShardedDataParallel(copy.deepcopy(plain)), []
    for step in range(2):
        results = []
        for each in (net, plain):
            each.zero_grad()
            x = batch(step)[0].requires_grad_()  # the same on every rank
            out = each(x)
            results.append([torch.autograd.grad(out.tanh().sum(), x, retain_graph=True)[0]])
            (gradient,) = torch.autograd.grad(out.tanh().sum(), x, create_graph=True)
            (out.square().mean() + gradient.square().mean()).backward()
            finish(each)
            results[-1] += [x.grad, *(value.grad for value in each.parameters() if value.ndim < 2)]
        found += [
            float((mine - expected).abs().max())
            for mine, expected in zip(*results, strict=True)
            if expected is not None
        ]
    return found


@pytest.mark.parametrize("frozen", [(), ("first",), ("third",), ("first", "second", "norm", "third", "last")])
def test_an_input_may_be_differentiated_twice_whatever_is_frozen(frozen):
    for found in spawn(input_gradients, 2, frozen):
        assert max(found) < 1e-6, found


def differentiate_inputs(net, step):
    x = batch(step)[0].requires_grad_()
    torch.autograd.grad(net(x).sum(), x)


def differentiate_inputs_alone(rank, frozen):
    """Return the events of each of four calls of a model, whose user has nothing to finish."""
    net, events = FullyShardedDataParallel(seeded(Net).requires_grad_(not frozen)), []
    for step in range(4):
        differentiate_inputs(net, step)
        events.append(list(net.events))
    return events


@pytest.mark.parametrize("frozen", [True, False])
def test_gradients_of_inputs_alone_gather_ahead_and_forget_earlier_events(frozen):
    for first, second, third, fourth in spawn(differentiate_inputs_alone, 2, frozen):
        assert third == fourth != first and len(fourth) <= len(first)
        assert third[:3] == [("gather", "first.weight"), ("gather", "second.weight"), ("compute", "first")]
        assert second == (third if frozen else first)


def train_on_perturbed_inputs(rank):
    """Return the numbers of checks in each of three steps that first differentiate the inputs."""
    net, checks = FullyShardedDataParallel(seeded(Net), copy_engines=False), []  # which all-reduce each step
    for step in range(3):
        with counted() as all_reduced:
            differentiate_inputs(net, step)
            backward(net, *batch(step))
            finish(net)
        checks.append(all_reduced.calls - net.traffic.averaged.calls)
    return checks


def test_a_step_with_a_backward_of_inputs_alone_is_checked_once():
    for first, *later in spawn(train_on_perturbed_inputs, 2):
        assert first > 0 and later == [0, 0]
