"""Communication of data parallelism: within its sub-group, rounded, and directly from the gradients."""

from collections import Counter
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cs336_systems.distributed.ddp import BucketedDDP, FlatDDP, OverlappedDDP
from tests.distributed.models import Tied, Toy
from tests.distributed.ranks import IS_PLAIN, ON_NCCL, counts_coalesced_calls, spawn
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
)

GROUPINGS = [([0, 1], [2, 3]), ([2, 0], [3, 1]), ([0], [1, 2, 3])]


def train_in_groups(rank):
    """Return the values that the rank's group trained on its own batches, for each grouping and strategy."""
    results = []
    for grouping in GROUPINGS:
        groups = [dist.new_group(ranks) for ranks in grouping]
        number = next(number for number, ranks in enumerate(grouping) if rank in ranks)
        group, size = groups[number], len(grouping[number])
        for wrap in STRATEGIES.values():
            net = wrap(seeded(Toy, rank), process_group=group)
            results.append(train(net, dist.get_rank(group), size, first=100 * number))
    return results


def test_sub_groups_train_for_themselves_from_their_own_first_rank():
    expected = [[] for _ in range(4)]
    for grouping in GROUPINGS:
        for number, ranks in enumerate(grouping):
            alone = train(seeded(Toy, min(ranks)), first=100 * number)  # torch sorts a group's ranks
            for rank in ranks:
                expected[rank] += [alone] * len(STRATEGIES)
    torch.testing.assert_close(spawn(train_in_groups, 4), expected, rtol=1e-5, atol=1e-6)


def send_in(rank, world_size, dtype):
    """Map each strategy to averaged gradients and bytes; return this rank's gradients too."""
    module = seeded(Toy)
    backward(module, *batch(0, rank, world_size))
    own, results = gradients(module), {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(Toy), communication_dtype=dtype)
        with counted() as traffic:
            backward(net, *batch(0, rank, world_size))
            net.finish_gradient_synchronization()
        assert traffic == net.traffic
        results[strategy] = gradients(net), traffic.num_bytes
    return results, own


@pytest.mark.parametrize("world_size", [2, 4])
def test_bfloat16_communication_halves_the_bytes_and_rounds_no_more_than_it_must(world_size):
    ranks = spawn(send_in, world_size, world_size, torch.bfloat16)
    exact = mean_gradients([own for _, own in ranks])
    size = mean_gradients([{name: g if g is None else g.abs() for name, g in own.items()} for _, own in ranks])
    half_ulp = torch.finfo(torch.bfloat16).eps / 2
    for results, _ in ranks:
        for strategy, (rounded, num_bytes) in results.items():
            assert num_bytes == 2 * 850, strategy
            for name in ("fc1.weight", "fc2.weight", "fc3.weight"):
                assert rounded[name].dtype == torch.float32
                error = (rounded[name] - exact[name]).abs()
                # one rounding before the all-reduce, and one per addition in it
                assert (error <= 1.01 * world_size * half_ulp * size[name]).all(), (strategy, name)
                assert error.max() > 0.1 * half_ulp * size[name].max(), "it was rounded"


def send_wider(rank, dtype):
    """Map each strategy to the gradients of a float16 weight, whose sum over two ranks float16 cannot hold."""
    results = {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(nn.Linear(2, 2, bias=False).half(), communication_dtype=dtype)
        (net(torch.ones(1, 2).half()) * 40000).sum().backward()
        net.finish_gradient_synchronization()
        results[strategy] = gradients(net)["weight"]
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_that_the_gradients_dtype_cannot_hold_has_its_average(dtype):
    for results in spawn(send_wider, 2, dtype):
        for strategy, gradient in results.items():
            wanted = torch.full((2, 2), 40000).to(dtype).half()
            assert torch.equal(gradient, wanted), (strategy, gradient)


def watch_launches(rank):
    """Map each strategy to the launches counted at each gradient, from the last layer on, and after the backward."""
    results = {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(Toy))
        with counted() as traffic:
            launched = []

            def note(_, traffic=traffic, launched=launched):
                launched.append(traffic.calls)

            for layer in (net.module.fc3, net.module.fc2, net.module.fc1):  # after the wrapper's own hook
                layer.weight.register_post_accumulate_grad_hook(note)
            backward(net, *batch(0))
            note(None)
            net.finish_gradient_synchronization()
        results[strategy] = launched
    return results


@counts_coalesced_calls
def test_overlapping_strategies_launch_as_soon_as_a_bucket_is_full_and_the_others_after_the_backward():
    expected = {
        "naive": [0, 0, 0, 0],
        "flat": [0, 0, 0, 0],
        "overlapped": [1, 2, 3, 3],
        "bucketed": [1, 1, 2, 2],  # fc3 | fc2, fc1
        "one_bucket": [0, 0, 1, 1],
    }
    assert spawn(watch_launches, 2) == [expected, expected]


def log_launches_and_waits(rank):
    """Map each strategy to its sequence of launches and waits."""
    inputs, labels = batch(0)
    results, all_reduce = {}, dist.all_reduce

    class Logged:
        def __init__(self, work, log):
            self.work, self.log = work, log
            log.append("launch")

        def wait(self):
            self.log.append("wait")
            return self.work.wait()

    for strategy in ("naive", "overlapped"):
        net, log = STRATEGIES[strategy](seeded(Toy)), []
        logging = lambda *args, log=log, **kwargs: Logged(all_reduce(*args, **kwargs), log)  # noqa: E731
        with patch.object(dist, "all_reduce", logging):
            backward(net, inputs, labels)
            net.finish_gradient_synchronization()
        results[strategy] = log
    return results


def test_the_naive_strategy_waits_for_each_all_reduce_before_the_next():
    for results in spawn(log_launches_and_waits, 2):
        assert results == {"naive": ["launch", "wait"] * 3, "overlapped": ["launch"] * 3 + ["wait"] * 3}


class Norms(nn.Module):
    """Two norms. A rank that uses the second one twice has another graph."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(10), nn.LayerNorm(10)

    def forward(self, x, twice=False):
        x = self.second(self.first(x) * 2)
        return self.second(x) if twice else x


def launches_of_norms(rank, unlike, looks_first):
    """Return the all-reduces of three steps, and the maximum error of the averaged gradients.

    Rank `looks_first` also runs a forward before each step and discards its output.
    """
    net, twin, launched, off = OverlappedDDP(seeded(Norms)), seeded(Norms), [], 0.0
    inputs = batch(0, rank, 2)[0]
    for _ in range(3):
        net.zero_grad(), twin.zero_grad()
        if looks_first == rank:
            net(inputs)
        with counted() as traffic:
            (net(inputs, unlike and rank == 1) ** 3).sum().backward()
            net.finish_gradient_synchronization()
        launched.append(traffic.calls)
        for number in range(2):
            (twin(batch(0, number, 2)[0], unlike and number == 1) ** 3).sum().div(2).backward()
        pairs = zip(net.parameters(), twin.parameters(), strict=True)
        off = max(off, *(float((ours.grad - exact.grad).abs().max()) for ours, exact in pairs))
    return launched, off


@counts_coalesced_calls
@pytest.mark.parametrize(
    ("unlike", "looks_first", "expected"), [(False, None, [4, 2, 2]), (False, 0, [4, 2, 2]), (True, None, [4, 4, 4])]
)
def test_what_arrives_at_once_is_launched_at_once_where_all_ranks_have_the_same_graph(unlike, looks_first, expected):
    for launched, off in spawn(launches_of_norms, 2, unlike, looks_first):
        assert launched == expected
        assert off < 1e-3


def average_of_unlike_strides(rank):
    """Return each strategy's averaged gradient of a matrix, which is column-major on rank 1."""
    results = []
    for wrap in STRATEGIES.values():
        layer = nn.Linear(3, 2, bias=False)
        if rank == 1:  # before the wrapper's own hook
            layer.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.T.contiguous().T))
        net = wrap(layer)
        (layer.weight * torch.arange(6.0).reshape(2, 3) * (rank + 1)).sum().backward()
        net.finish_gradient_synchronization()
        results.append(layer.weight.grad)
    return results


def test_gradients_that_lie_differently_in_memory_meet_their_like():
    expected = torch.arange(6.0).reshape(2, 3) * 1.5
    for results in spawn(average_of_unlike_strides, 2):
        torch.testing.assert_close(results, [expected] * len(STRATEGIES))


def count_buckets_of_36_mib(rank):
    module = nn.ParameterList(nn.Parameter(torch.zeros(3 * 2**20)) for _ in range(3))
    return [len(wrap(module).buckets) for wrap in (FlatDDP, BucketedDDP)]


def test_the_flat_strategy_has_no_limit_and_buckets_are_of_25_mib_unless_asked_otherwise():
    assert spawn(count_buckets_of_36_mib, 2) == [[1, 2]] * 2


def ops_of(function):
    """Count the operations that torch dispatches during a call."""

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            counts[op.name().split(".")[0]] += 1
            return op(*args, **kwargs or {})

    counts = Counter()
    with Log():
        function()
    return counts


def operations_of_a_step(rank):
    """Map each strategy to its operations beyond the plain module's, and the gradients' addresses before and after."""
    inputs, labels, group = *batch(0), dist.new_group()
    plain = seeded(Tied)
    backward(plain, inputs, labels)  # makes the gradients, so the next backward adds in place
    usual, results = ops_of(lambda: backward(plain, inputs, labels)), {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(Tied), process_group=group)
        backward(net, inputs, labels)  # the first step also inspects the graph
        finish(net)
        net.zero_grad()
        with net.no_sync():
            backward(net, inputs, labels)
        before = [parameter.grad.data_ptr() for parameter in net.parameters()]
        counts = ops_of(lambda net=net: (backward(net, inputs, labels), finish(net)))
        results[strategy] = counts - usual, before, [parameter.grad.data_ptr() for parameter in net.parameters()]
        assert not usual - counts
    return results


def test_only_the_flat_strategy_copies_gradients():
    for results in spawn(operations_of_a_step, 2):
        for strategy, (operations, before, after) in results.items():
            assert before == after, strategy
            reductions = {name: count for name, count in operations.items() if name.startswith("c10d::")}
            others = operations.keys() - reductions.keys()
            if strategy == "flat":
                assert "aten::cat" in others and "aten::_foreach_copy_" in others, "the log sees copies"
            else:
                assert others == (set() if ON_NCCL else {"aten::_foreach_div_"}), strategy  # NCCL averages by itself
        if not IS_PLAIN:
            bucketed = results["bucketed"][0]
            assert bucketed["c10d::allreduce_coalesced_"] == 1 and bucketed["c10d::allreduce_"] == 2
