"""Every strategy trains like one process with the whole batch, with the calls and bytes of its formula."""

import functools
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.distributed.models import Blocks, Branches, Mixed, Odd, Tied, Toy
from tests.distributed.ranks import IS_PLAIN, counts_coalesced_calls, spawn
from tests.distributed.steps import (
    STRATEGIES,
    batch,
    counted,
    gradients,
    mean_gradients,
    seeded,
    train,
    values,
)

MODELS = {
    "toy": Toy,
    "tied": Tied,
    "odd": Odd,
    "blocks": Blocks,
    "float64": partial(Mixed, torch.float64),
    "bfloat16": partial(Mixed, torch.bfloat16),
}

# Calls follow from the number of trained tensors, of dtypes, and of buckets of at most 2621 bytes. Toy's buckets, from
# the last parameter to the first: 1000 | 2000 + 400. Tied's, whose shared weight counts once: 1000 | 2000 | 2000 + 400.
# One node produces both gradients of a norm and of a block; the groups of Blocks are 1100 | 880 | 440.
CALLS = {
    "toy": {"naive": 3, "flat": 1, "overlapped": 3, "bucketed": 2, "one_bucket": 1},
    "tied": {"naive": 4, "flat": 1, "overlapped": 4, "bucketed": 3, "one_bucket": 1},
    "odd": {"naive": 3, "flat": 1, "overlapped": 3, "bucketed": 1, "one_bucket": 1},
    "blocks": {"naive": 12, "flat": 1, "overlapped": 3, "bucketed": 1, "one_bucket": 1},
    "float64": {"naive": 6, "flat": 2, "overlapped": 5, "bucketed": 2, "one_bucket": 2},
    "bfloat16": {"naive": 6, "flat": 2, "overlapped": 5, "bucketed": 2, "one_bucket": 2},
}
NUM_LINEAR, NUM_NORM = 16 * 10 + 16 + 5 * 16 + 5, 2 * 16
BYTES = {
    "toy": 4 * (10 * 10 + 50 * 10 + 5 * 50),
    "tied": 4 * (10 * 10 + 50 * 10 + 10 * 50 + 5 * 50),
    "odd": 4 * (1 + 5 * 10),
    "blocks": 5 * 440 + 220,
    "float64": 8 * NUM_LINEAR + 4 * NUM_NORM,
    "bfloat16": 2 * NUM_LINEAR + 4 * NUM_NORM,
}


def train_everything(rank, world_size):
    """Map (model, strategy) to the trained values and the traffic of the last step, as reported and as counted."""
    results = {}
    for model, build in MODELS.items():
        for strategy, wrap in STRATEGIES.items():
            net = wrap(seeded(build, rank))
            train(net, rank, world_size, steps=4)
            with counted() as traffic:
                trained = train(net, rank, world_size, steps=1, first=4)
            reported = (net.traffic.calls, net.traffic.num_bytes)
            results[model, strategy] = trained, reported, (traffic.calls, traffic.num_bytes)
    return results


@pytest.mark.parametrize(
    "world_size", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_training_equals_a_single_process_with_the_calls_and_bytes_of_the_formulas(world_size):
    trained = spawn(train_everything, world_size, world_size)
    for model, strategy in trained[0]:
        weights = trained[0][model, strategy][0]
        if model == "bfloat16":
            check_bfloat16(weights)
        else:
            torch.testing.assert_close(weights, train_alone(MODELS[model]), rtol=1e-5, atol=1e-6)
        for rank_trained in trained:
            rank_weights, reported, counted_calls = rank_trained[model, strategy]
            torch.testing.assert_close(rank_weights, weights, rtol=0, atol=0)
            if not IS_PLAIN:
                expected = CALLS[model][strategy], BYTES[model]
                assert reported == counted_calls == expected, (model, strategy)


@functools.cache
def train_alone(build, dtype=None):
    net = seeded(build).to(dtype)  # None keeps the dtype
    untrained = values(net)
    train(net, steps=4)  # momentum starts anew after four steps, as on the ranks
    trained = train(net, steps=1, first=4)
    assert any(not torch.allclose(trained[name], untrained[name], rtol=0.01) for name in trained)
    return trained


def check_bfloat16(weights):
    """Hold the error against float64 to that of a single process."""
    exact, alone = train_alone(MODELS["bfloat16"], torch.float64), train_alone(MODELS["bfloat16"])
    for name, value in weights.items():
        assert value.dtype == (torch.float32 if "norm" in name else torch.bfloat16)
        error_alone = (alone[name].double() - exact[name]).abs().max()
        last_place = torch.finfo(value.dtype).eps * exact[name].abs().max()
        assert (value.double() - exact[name]).abs().max() <= 2 * error_alone + 2 * last_place, name


ORDERS = [(0, 1, 2, 3), (3, 1, 0, 2), (1, 3, 2, 0)]


def backward_in_order(rank, world_size):
    """Return averaged gradients and calls by strategy, the order of arrival, and this rank's gradients."""
    inputs, _ = batch(0, rank, world_size)
    module = seeded(Branches)
    module(inputs, ORDERS[rank]).backward()
    own, averaged, arrivals = gradients(module), {}, []
    for strategy, wrap in STRATEGIES.items():
        module = seeded(Branches)
        arrivals.clear()
        for index, branch in enumerate(module.branches):
            branch.weight.register_post_accumulate_grad_hook(lambda _, index=index: arrivals.append(index))
        net = wrap(module)
        for _ in range(3):
            net.zero_grad()
            with counted() as traffic:
                net(inputs, ORDERS[rank]).backward()
            net.finish_gradient_synchronization()
        averaged[strategy] = gradients(net), traffic.calls
        dist.barrier()
    return averaged, arrivals[:4], own


@counts_coalesced_calls
def test_gradients_that_arrive_in_another_order_on_every_rank_meet_their_like():
    ranks = spawn(backward_in_order, 3, 3)
    assert len({tuple(arrivals) for _, arrivals, _ in ranks}) == 3
    expected = mean_gradients([own for _, _, own in ranks])
    for averaged, _, _ in ranks:
        for strategy in STRATEGIES:
            torch.testing.assert_close(averaged[strategy][0], expected)
        # all buckets are launched in the backward, since the last gradient may complete many
        assert [averaged[strategy][1] for strategy in STRATEGIES] == [0, 0, 8, 4, 1]
