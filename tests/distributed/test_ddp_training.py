"""Every strategy trains as one process with the whole batch does, with the calls and bytes that its formula says."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.distributed.models import Blocks, Branches, Mixed, Odd, Tied, Toy
from tests.distributed.ranks import counts_coalesced_calls, spawn
from tests.distributed.steps import (
    STRATEGIES,
    backward,
    batch,
    counted,
    finish,
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

# Trained tensors, dtypes, and buckets of at most 2621 bytes; and the bytes of all gradients. Toy's buckets, from the
# last parameter to the first: 1000 | 2000 + 400. Tied, whose shared weight counts once: 1000 | 2000 | 2000 + 400.
# One node of the graph makes both gradients of a norm, and of a compiled block: those go in 1100 | 880 | 440.
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
    """(model, strategy) -> the trained values, and what the last of five steps sent, as told and as counted."""
    found = {}
    for model, build in MODELS.items():
        for strategy, wrap in STRATEGIES.items():
            net = wrap(seeded(build, rank))
            train(net, rank, world_size, steps=4)
            with counted() as traffic:
                trained = train(net, rank, world_size, steps=1, first=4)
            told = (net.traffic.calls, net.traffic.num_bytes)
            found[model, strategy] = trained, told, (traffic.calls, traffic.num_bytes)
    return found


@pytest.fixture(scope="module", params=[2, 3, 4])
def trained(request):
    return spawn(train_everything, request.param, request.param)


def train_alone(build, dtype=None):
    net = seeded(build).to(dtype)  # None: as it is
    train(net, steps=4)  # momentum starts anew after four steps, as on the ranks
    return train(net, steps=1, first=4)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", ["toy", "tied", "odd", "blocks", "float64"])
def test_training_equals_a_single_process(trained, model, strategy):
    alone = train_alone(MODELS[model])
    untrained = values(seeded(MODELS[model]))
    assert any(not torch.allclose(alone[name], untrained[name], rtol=0.01) for name in alone)
    torch.testing.assert_close(trained[0][model, strategy][0], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bfloat16_training_is_as_near_to_float64_as_a_single_process_is(trained, strategy):
    exact = train_alone(MODELS["bfloat16"], torch.float64)
    alone = train_alone(MODELS["bfloat16"])
    for name, value in trained[0]["bfloat16", strategy][0].items():
        assert value.dtype == (torch.float32 if "norm" in name else torch.bfloat16)
        near = (alone[name].double() - exact[name]).abs().max()
        last_place = torch.finfo(value.dtype).eps * exact[name].abs().max()
        assert (value.double() - exact[name]).abs().max() <= 2 * near + 2 * last_place, name


def test_ranks_hold_the_same_bits(trained):
    for found in trained[1:]:
        for case, (weights, _, _) in found.items():
            torch.testing.assert_close(weights, trained[0][case][0], rtol=0, atol=0)


@counts_coalesced_calls
@pytest.mark.parametrize("model", MODELS)
def test_calls_and_bytes_are_the_formulas(trained, model):
    for found in trained:
        for strategy in STRATEGIES:
            _, told, asked = found[model, strategy]
            assert told == asked == (CALLS[model][strategy], BYTES[model]), strategy


def clip_and_schedule(rank, world_size):
    """Norms before clipping and final values, with all of it around the wrapper; `world_size` 1 is a plain module."""
    found = {}
    for strategy, wrap in STRATEGIES.items():
        net = seeded(Toy, rank) if world_size == 1 else wrap(seeded(Toy, rank))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        norms = []
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            backward(net, *batch(step, rank, world_size))
            finish(net)
            norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1))
            optimizer.step()
            scheduler.step()
        found[strategy] = norms, values(net)
    return found


def test_clipping_and_a_schedule_act_as_in_a_single_process():
    alone = clip_and_schedule(0, 1)
    assert all(norm > 0.1 for norm in alone["naive"][0]), "every step is clipped"
    for found in spawn(clip_and_schedule, 2, 2):
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)


ORDERS = [(0, 1, 2, 3), (3, 1, 0, 2), (1, 3, 2, 0)]


def backward_in_order(rank, world_size):
    """strategy -> gradients after the averaging, calls during the backward; order of arrival; this rank's gradients."""
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
        # the last gradient may complete many buckets: none is left for the end of the step
        assert [averaged[strategy][1] for strategy in STRATEGIES] == [0, 0, 8, 4, 1]
