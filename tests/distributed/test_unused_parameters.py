"""Parameters without a gradient on all ranks or on some: gradients of different parameters are never mixed."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.distributed.models import Branches
from tests.distributed.ranks import spawn
from tests.distributed.steps import STRATEGIES, batch, counted, error_of, gradients, mean_gradients, seeded


def own_gradients(rank, world_size, orders):
    """Return the gradients of a plain module after a backward for each of `orders`."""
    module = seeded(Branches)
    for order in orders:
        module(batch(0, rank, world_size)[0], order).backward()
    return gradients(module)


def average(rank, world_size, orders, find_unused_parameters):
    """Map each strategy to error and gradients of a step with `orders[rank]`, and the error of a full step after it."""
    inputs, results = batch(0, rank, world_size)[0], {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(Branches), find_unused_parameters=find_unused_parameters)
        loss = net(inputs, orders[rank])
        with torch.no_grad():
            net(inputs, (0,))  # a forward without gradients does not count as use
        loss.backward()
        error = error_of(net.finish_gradient_synchronization)
        averaged = gradients(net)
        net.zero_grad()
        net(inputs, (0, 1, 2, 3)).backward()
        results[strategy] = error, averaged, error_of(net.finish_gradient_synchronization)
    return results


def test_unlike_branches_on_two_ranks_raise_on_both():
    for rank, results in enumerate(spawn(average, 2, 2, [(0,), (1,)], False)):
        missing = [f"branches.{branch}.{name}" for branch in range(4) for name in ("weight", "bias") if branch != rank]
        for error, _, next_error in results.values():
            assert error.startswith(f"RuntimeError: rank {rank}: no gradient for {', '.join(missing)};")
            assert "find_unused_parameters=True" in error
            assert next_error == "nothing", "ranks stay in step"


def test_only_the_rank_that_misses_a_parameter_raises():
    orders = [(0, 1, 2, 3), (3, 0, 1), (0, 1, 2, 3)]
    expected = mean_gradients([own_gradients(rank, 3, [order]) for rank, order in enumerate(orders)])
    for rank, results in enumerate(spawn(average, 3, 3, orders, False)):
        for error, averaged, next_error in results.values():
            if rank == 1:
                assert "rank 1: no gradient for branches.2.weight, branches.2.bias;" in error
            else:
                assert error == "nothing"
                torch.testing.assert_close(averaged, expected)
            assert next_error == "nothing"


ORDERS = {
    "another branch on each rank": [(0,), (1,)],
    "the same branch on all": [(2,), (2,), (2,)],
    "in part the same": [(3, 0), (0, 2), (2, 0, 3)],
    "nothing on rank 0": [(), (1,), (2, 0)],
    "nothing on rank 1": [(1,), ()],
    "nothing on any": [(), ()],
    "everything on rank 1": [(2,), (0, 1, 2, 3)],
}


@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_find_unused_parameters_averages_over_all_ranks_and_leaves_none_where_nobody_has_a_gradient(orders):
    world_size = len(orders)
    expected = mean_gradients([own_gradients(rank, world_size, [order]) for rank, order in enumerate(orders)])
    assert sum(gradient is not None for gradient in expected.values()) == 2 * len(set().union(*orders))
    for results in spawn(average, world_size, world_size, orders, True):
        for strategy in STRATEGIES:
            error, averaged, next_error = results[strategy]
            assert error == next_error == "nothing"
            torch.testing.assert_close(averaged, expected)


def accumulate(rank, world_size, orders):
    """Map each strategy to the gradients after micro-batches with `orders[rank]` in turn, and their traffic."""
    inputs, results = batch(0, rank, world_size)[0], {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(Branches), find_unused_parameters=True)
        with counted() as traffic:
            with net.no_sync():
                for order in orders[rank][:-1]:
                    net(inputs, order).backward()
            net(inputs, orders[rank][-1]).backward()
            net.finish_gradient_synchronization()
        results[strategy] = gradients(net), traffic, net.traffic
    return results


def test_micro_batches_may_each_use_other_parameters_and_the_last_one_none():
    orders = [[(0,), (0, 1)], [(1, 2), ()], [(), (2,)]]
    expected = mean_gradients([own_gradients(rank, 3, order) for rank, order in enumerate(orders)])
    assert expected["branches.3.weight"] is None
    for results in spawn(accumulate, 3, 3, orders):
        for strategy, (averaged, counts, reported) in results.items():
            torch.testing.assert_close(averaged, expected)
            assert counts == reported
            # 4 branches of a 2000 B weight and a 200 B bias, and a separate call with one number for each of these 8
            assert reported.num_bytes == 4 * 2200 + 4 * 8
            assert strategy != "flat" or reported.calls == 2


def count_under(rank, default):
    """Return the gradients and the reported bytes of each strategy's step under another default dtype."""
    results, inputs = [], batch(0, rank, 2)[0]
    torch.set_default_dtype(default)
    try:
        for wrap in STRATEGIES.values():
            net = wrap(seeded(Branches).float(), find_unused_parameters=True)
            net(inputs, [(0, 1), (1,)][rank]).backward()
            net.finish_gradient_synchronization()
            results.append((gradients(net), net.traffic.num_bytes))
    finally:
        torch.set_default_dtype(torch.float32)
    return results


def test_users_are_counted_in_full_whatever_the_default_dtype():
    """bfloat16 counts up to 256 ranks."""
    for results in spawn(count_under, 2, torch.bfloat16):
        for averaged, num_bytes in results:
            assert [name for name, gradient in averaged.items() if gradient is None] == [
                f"branches.{branch}.{name}" for branch in (2, 3) for name in ("weight", "bias")
            ]
            assert num_bytes == 4 * 2200 + 4 * 8


def average_in_pairs(rank):
    """Return gradients and errors if ranks 0 and 1 use two branches and ranks 2 and 3 another one."""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    results = []
    for allowed in (True, False):
        net = STRATEGIES["bucketed"](seeded(Branches), process_group=pair, find_unused_parameters=allowed)
        net(batch(0)[0], [(0,), (1,), (2,), (2,)][rank]).backward()
        error = error_of(net.finish_gradient_synchronization)
        results += [[name for name, gradient in gradients(net).items() if gradient is not None], error]
    return results


def test_what_another_group_uses_is_unused_here():
    names = [[f"branches.{branch}.{name}" for name in ("weight", "bias")] for branch in range(3)]
    for rank, (used, error, _, not_allowed) in enumerate(spawn(average_in_pairs, 4)):
        assert (used, error) == (names[0] + names[1] if rank < 2 else names[2], "nothing")
        assert not_allowed.startswith(f"RuntimeError: rank {rank}: no gradient for branches"), "its rank in the world"


def train_frozen(rank):
    """Run a model without trained parameters, and count its calls."""
    frozen = nn.Linear(2, 2).requires_grad_(False)
    results = []
    for wrap in STRATEGIES.values():
        net = wrap(frozen, find_unused_parameters=True)
        net(torch.ones(1, 2))
        net.finish_gradient_synchronization()
        results.append(net.traffic.calls)
    return results


def test_a_frozen_model_sends_nothing():
    assert spawn(train_frozen, 2) == [[0] * len(STRATEGIES)] * 2
