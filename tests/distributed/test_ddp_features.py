"""Features of data parallelism beyond averaging: initial values, buffers, accumulation, state_dict, rewrapping."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.distributed.models import Buffered, Toy
from tests.distributed.ranks import counts_coalesced_calls, spawn
from tests.distributed.steps import (
    STRATEGIES,
    backward,
    batch,
    counted,
    error_of,
    gradients,
    mean_gradients,
    seeded,
    train,
    values,
)

ALIKE = {"rtol": 0, "atol": 0}


def wrap_everything(rank):
    """Map (model, strategy) to the values before and after wrapping."""
    results = {}
    for model in (Toy, Buffered):
        for strategy, wrap in STRATEGIES.items():
            module = seeded(model, rank)
            before = values(module)
            results[model.__name__, strategy] = before, values(wrap(module))
    return results


def test_ranks_start_from_rank_0s_parameters_and_buffers():
    ranks = spawn(wrap_everything, 3)
    random = {"Toy": "fc2.bias", "Buffered": "cache"}
    for (model, strategy), (wanted, _) in ranks[0].items():
        for rank, results in enumerate(ranks):
            before, after = results[model, strategy]
            assert torch.equal(before[random[model]], wanted[random[model]]) == (rank == 0)
            torch.testing.assert_close(after, wanted, **ALIKE)
    assert {"fc2.bias", "constant"} <= ranks[0]["Toy", "naive"][1].keys()
    buffers = {"cache", "expanded", "transposed", "rotation", "negated", "strided", "mask", "short"}
    assert buffers <= ranks[0]["Buffered", "naive"][1].keys()


def forward_buffers(rank, broadcast_buffers):
    """Return the buffers of a forward in training and one in evaluation, after each rank changed its own."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    net = STRATEGIES["naive"](seeded(Buffered), process_group=pairs[rank // 2], broadcast_buffers=broadcast_buffers)
    results = []
    for training in (True, False):
        net.train(training)
        for buffer in net.module.buffers():
            buffer.fill_(rank + 1)
        with torch.no_grad():
            net(batch(0)[0])
        results.append({name: value.sum().item() / value.numel() for name, value in net.module.named_buffers()})
    return results


@pytest.mark.parametrize("broadcast_buffers", [True, False])
def test_buffers_are_the_groups_rank_0s_in_every_forward_in_training_if_asked(broadcast_buffers):
    own = {"scale", "cache", "transposed", "rotation", "short"}
    for rank, (training, evaluation) in enumerate(spawn(forward_buffers, 4, broadcast_buffers)):
        filled = (0, 0, 2, 2)[rank] + 1 if broadcast_buffers else rank + 1
        assert {name: training[name] for name in own} == dict.fromkeys(own, filled)
        assert training["num_forwards"] == filled + 1, "broadcast before the forward, which then counts"
        assert {name: evaluation[name] for name in own} == dict.fromkeys(own, rank + 1)


NUM_MICRO_BATCHES = 3


def accumulate(rank, world_size):
    """Map each strategy to the gradients of a batch and of its micro-batches, and to their traffic."""
    results = {}
    inputs, labels = batch(0, rank, world_size)
    micro_batches = list(zip(inputs.chunk(NUM_MICRO_BATCHES), labels.chunk(NUM_MICRO_BATCHES), strict=True))
    for strategy, wrap in STRATEGIES.items():
        module = seeded(Toy)
        for micro_batch in micro_batches[:-1]:
            backward(module, *micro_batch, scale=1 / NUM_MICRO_BATCHES)
        own = gradients(module)
        net = wrap(seeded(Toy))
        backward(net, inputs, labels)
        net.finish_gradient_synchronization()
        whole, once = gradients(net), net.traffic
        net.zero_grad()
        with counted() as traffic:
            with net.no_sync():
                with net.no_sync():  # the inner context ends, the outer one continues
                    pass
                for micro_batch in micro_batches[:-1]:
                    backward(net, *micro_batch, scale=1 / NUM_MICRO_BATCHES)
            torch.testing.assert_close(gradients(net), own, **ALIKE)
            assert traffic.calls == 0
            backward(net, *micro_batches[-1], scale=1 / NUM_MICRO_BATCHES)
            net.finish_gradient_synchronization()
        results[strategy] = whole, gradients(net), once, traffic, net.traffic
    return results


def test_accumulation_without_synchronization_equals_the_big_batch_for_one_round_of_communication():
    for results in spawn(accumulate, 2, 2):
        for whole, accumulated, once, counts, reported in results.values():
            torch.testing.assert_close(accumulated, whole, rtol=1e-5, atol=1e-7)
            assert once == counts == reported


def exchange_state_dicts(rank):
    """Return whether the keys agree, and the values of a net, a plain module and another net in turn."""
    net = STRATEGIES["bucketed"](seeded(Buffered, rank))
    trained = train(net, rank, 2)
    plain = seeded(Buffered, 7)
    plain.load_state_dict(net.state_dict())
    other = STRATEGIES["flat"](seeded(Buffered, 8))
    other.load_state_dict(plain.state_dict())
    persistent = net.state_dict().keys()
    return persistent == plain.state_dict().keys(), *(
        {name: results[name] for name in persistent} for results in (trained, values(plain), values(other))
    )


def test_state_dict_has_no_prefix_and_loads_into_the_plain_module_and_back():
    for same_keys, trained, plain, other in spawn(exchange_state_dicts, 2):
        assert same_keys
        torch.testing.assert_close(plain, trained, **ALIKE)
        torch.testing.assert_close(other, trained, **ALIKE)


def wrap_twice(rank, world_size):
    """Delete a wrapper; use its module alone and in another wrapper."""
    module = seeded(Toy)
    inputs, labels = batch(0, rank, world_size)
    old = STRATEGIES["overlapped"](module)
    backward(old, inputs, labels)
    old.finish_gradient_synchronization()
    averaged = gradients(old)
    del old  # freed by reference counting, without a garbage collection
    module.zero_grad()
    with counted() as traffic:
        backward(module, inputs, labels)
    plain, calls = gradients(module), traffic.calls
    module.zero_grad()
    net = STRATEGIES["one_bucket"](module)
    with counted() as traffic:
        backward(net, inputs, labels)
        net.finish_gradient_synchronization()
    return plain, calls, averaged, gradients(net), traffic.calls


@counts_coalesced_calls
def test_a_dropped_wrapper_does_nothing_and_the_module_can_be_wrapped_again():
    ranks = spawn(wrap_twice, 2, 2)
    expected = mean_gradients([plain for plain, *_ in ranks])
    for _, calls_without, first, second, calls in ranks:
        assert (calls_without, calls) == (0, 1)
        torch.testing.assert_close([first, second], [expected, expected])


def deepcopy_under_no_sync(net):
    with net.no_sync():
        return copy.deepcopy(net)


def train_copies(rank, world_size):
    """Map (strategy, how it was copied) to the gradients of the copy and the original, and to the copy's calls during
    the backward and after it."""
    group = dist.new_group(list(range(world_size)))
    results = {}
    for strategy, wrap in STRATEGIES.items():
        ways = {
            "deepcopy": copy.deepcopy,
            "of a deepcopy": lambda net: copy.deepcopy(copy.deepcopy(net)),
            "pickle": lambda net: pickle.loads(pickle.dumps(net)),
            "under no_sync": deepcopy_under_no_sync,
        }
        for way, copied in ways.items():
            original = wrap(seeded(Toy), process_group=None if way == "pickle" else group)
            backward(original, *batch(0, rank, world_size))
            original.finish_gradient_synchronization()
            net = copied(original)
            net.zero_grad()
            with counted() as during:
                backward(net, *batch(0, rank, world_size))
            with counted() as after:
                net.finish_gradient_synchronization()
            results[strategy, way] = gradients(net), gradients(original), during.calls, after.calls
    return results


def test_a_copy_trains_as_its_original_and_by_itself():
    ranks = spawn(train_copies, 2, 2)
    for results in ranks:
        for (strategy, way), (ours, wanted, during, after) in results.items():
            torch.testing.assert_close(ours, wanted, **ALIKE)
            is_early = strategy not in ("naive", "flat")
            assert (during > 0, after == 0) == (is_early, is_early), (strategy, way)


def copy_within_a_step(rank):
    """Return the errors of copying and of pickling, each strategy."""
    errors = []
    for wrap in STRATEGIES.values():
        net = wrap(seeded(Toy))
        backward(net, *batch(0))
        errors += [error_of(copy.deepcopy, net), error_of(pickle.dumps, net)]
        net.finish_gradient_synchronization()
    return errors


def test_a_step_is_finished_before_it_is_copied():
    errors = spawn(copy_within_a_step, 2)
    assert all("before finish_gradient_synchronization()" in error for rank in errors for error in rank)


class Small(nn.Module):
    """Model with one trained parameter of one element, or with none, and perhaps a frozen one."""

    def __init__(self, num_trained, num_frozen):
        super().__init__()
        self.trained = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(num_trained))
        self.frozen = nn.ParameterList(nn.Parameter(torch.ones(1), requires_grad=False) for _ in range(num_frozen))

    def forward(self, x):
        return x * sum([*self.trained, *self.frozen], torch.zeros(()))


def train_small(rank):
    """Return the gradients of three steps for each strategy and size."""
    results = []
    for wrap in STRATEGIES.values():
        for num_trained, num_frozen in ((0, 0), (0, 1), (1, 0), (1, 1)):
            net = wrap(Small(num_trained, num_frozen))
            for _ in range(3):
                net.zero_grad()
                loss = net(torch.tensor(float(rank)))
                if num_trained:
                    loss.sum().backward()
                net.finish_gradient_synchronization()
            results += [float(parameter.grad) for parameter in net.module.trained]
    return results


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_model_may_have_no_parameter_or_one(world_size):
    assert spawn(train_small, world_size) == [[(world_size - 1) / 2] * 2 * len(STRATEGIES)] * world_size
