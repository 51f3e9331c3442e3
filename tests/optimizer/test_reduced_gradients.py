"""A sharded optimizer that averages gradients at their owners: the large batch for 2P elements instead of 3P."""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.distributed.ddp import NaiveDDP
from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from tests.distributed.ranks import spawn
from tests.optimizer.beside import ADAMW, assert_same, loss_of, network

MOVES = {"all_reduce": 2, "reduce": 1, "broadcast": 1}
"""Number of times that a ring of many ranks moves an element."""


@contextlib.contextmanager
def counted():
    """Count what is passed to collectives inside, apart from the flags that ranks tell each other on the CPU."""
    total = SimpleNamespace(calls=0, num_bytes=0, num_moved=0, told=0)

    def counting(collective, moves):
        def count(tensor, *args, **kwargs):
            if tensor.dtype == torch.uint8:
                total.told += 1
                return collective(tensor, *args, **kwargs)
            total.calls += 1
            total.num_bytes += tensor.nbytes
            total.num_moved += moves * tensor.numel()
            assert tensor.is_contiguous()  # NCCL refuses others
            return collective(tensor, *args, **kwargs)

        return count

    with patch.multiple(dist, **{name: counting(getattr(dist, name), moves) for name, moves in MOVES.items()}):
        yield total


def part_of(rank, num_ranks):
    return slice(rank * 12 // num_ranks, (rank + 1) * 12 // num_ranks)


def own_part(rank, group=None):
    return part_of(dist.get_rank(group), dist.get_world_size(group))


def pair(optimizer_cls=torch.optim.AdamW, dtype=torch.float32, **kwargs):
    model, twin = network(dtype), network(dtype)
    kwargs = kwargs or ADAMW
    sharded = ShardedOptimizer(model.parameters(), optimizer_cls, reduces_gradients=True, **kwargs)
    return model, sharded, twin, optimizer_cls(twin.parameters(), **kwargs)


def train(model, optimizer, step, part=slice(None)):
    optimizer.zero_grad()
    loss_of(model, step, part).backward()
    optimizer.step()


def train_on_parts(rank, optimizer_cls, options, dtype, rtol):
    model, sharded, twin, plain = pair(optimizer_cls, dtype, **options)
    for step in range(6):
        train(model, sharded, step, own_part(rank))
        train(twin, plain, step)
        assert_same(model, twin, rtol=rtol, atol=rtol)
        for parameter in model.parameters():
            assert parameter.grad is None


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    ("optimizer_cls", "options", "dtype", "rtol"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, torch.float32, 2e-6),
        (
            torch.optim.AdamW,
            ADAMW,
            torch.float64,
            1e-10,
        ),  # AdamW divides a gradient by its size, which amplifies rounding
    ],
    ids=["sgd", "adamw"],
)
def test_parts_of_a_batch_train_like_the_whole(world_size, optimizer_cls, options, dtype, rtol):
    spawn(train_on_parts, world_size, optimizer_cls, options, dtype, rtol)


def average_bfloat16(rank):
    model, sharded, twin, plain = pair(dtype=torch.bfloat16)
    for step in range(4):
        plain.zero_grad()
        for part in range(2):
            loss_of(twin, step, part_of(part, 2)).backward()  # accumulates in bfloat16, as the sum of two ranks
        for parameter in twin.parameters():
            if parameter.grad is not None:
                parameter.grad /= 2
        plain.step()
        train(model, sharded, step, own_part(rank))
        assert_same(model, twin)


def test_bfloat16_gradients_are_averaged_in_bfloat16():
    spawn(average_bfloat16, 2)


def accumulate(rank):
    """Run two backwards per step, on the halves of this rank's part."""
    model, sharded, twin, plain = pair(torch.optim.SGD, lr=0.1)
    for step in range(3):
        sharded.zero_grad()
        for half in range(2):
            loss_of(model, step, part_of(2 * rank + half, 4)).div(2).backward()
        sharded.step()
        train(twin, plain, step)
        assert_same(model, twin, rtol=2e-6, atol=2e-6)


def test_gradients_accumulate_before_they_are_reduced():
    spawn(accumulate, 2)


def forget_zero_grad(rank, clips):
    """Train without `zero_grad`, beside a twin that has it."""
    model, sharded, twin, plain = pair(torch.optim.SGD, lr=0.1)
    for step in range(3):
        loss_of(model, step, own_part(rank)).backward()
        if clips:
            sharded.clip_grad_norm_(1e6)
        sharded.step()
        assert all(parameter.grad is None for parameter in model.parameters())
        train(twin, plain, step)
        assert_same(model, twin, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("clips", [False, True])
def test_a_step_leaves_no_gradients_to_which_the_next_backward_would_add(clips):
    spawn(forget_zero_grad, 2, clips)


def count_two(rank):
    model, sharded, _, _ = pair()
    trained = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    for step in range(2):
        with counted() as total:
            train(model, sharded, step, own_part(rank))
        assert total.num_moved == 2 * sum(trained)
        assert total.num_bytes == sharded.traffic.num_bytes == 8 * sum(trained)
        assert total.calls == sharded.traffic.calls == 2 * len(trained)
        assert total.told == 2
    loss_of(model, 2, own_part(rank)).backward()
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    with counted() as total:
        sharded.clip_grad_norm_(1.0)
        sharded.step()
    assert total.num_bytes == sharded.traffic.num_bytes == 8 * sum(trained) + 4
    assert total.calls == sharded.traffic.calls == 2 * len(trained) + 1


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_step_moves_two_elements_for_each_parameter(world_size):
    spawn(count_two, world_size)


def count_three(rank):
    """Train as the course does: ranks start with different weights, and data parallelism averages the gradients."""
    net = NaiveDDP(network(seed=rank))
    sharded = ShardedOptimizer(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    twin = network()
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    trained = [parameter.numel() for parameter in net.parameters() if parameter.requires_grad]
    for step in range(3):
        with counted() as total:
            sharded.zero_grad()
            loss_of(net, step, own_part(rank)).backward()
            net.finish_gradient_synchronization()
            sharded.step()
        train(twin, plain, step)
        assert_same(net.module, twin, rtol=2e-6, atol=2e-6)
        assert total.num_moved == 3 * sum(trained)
        assert total.num_bytes == net.traffic.num_bytes + sharded.traffic.num_bytes == 8 * sum(trained)
        assert total.calls == net.traffic.calls + sharded.traffic.calls
        assert total.told == 1


@pytest.mark.parametrize("world_size", [2, 3])
def test_data_parallelism_and_a_sharded_optimizer_move_three(world_size):
    spawn(count_three, world_size)


def clip(rank, max_norm):
    model, sharded, twin, plain = pair(torch.optim.SGD, torch.float64, lr=1.0)
    for step in range(3):
        sharded.zero_grad()
        plain.zero_grad()
        loss_of(model, step, own_part(rank)).backward()
        loss_of(twin, step).backward()
        norm = sharded.clip_grad_norm_(max_norm)
        torch.testing.assert_close(norm.double(), nn.utils.clip_grad_norm_(twin.parameters(), max_norm))
        sharded.step()
        plain.step()
        assert_same(model, twin, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("world_size", "max_norm"), [(2, 0.01), (3, 0.01), (2, 1e9)])
def test_the_norm_is_that_of_all_averaged_gradients(world_size, max_norm):
    spawn(clip, world_size, max_norm)


def clip_one_of_many_dtypes(rank):
    """Clip where one rank owns a bfloat16 parameter, one a float32 parameter, and one nothing."""
    weights = [nn.Parameter(torch.zeros(8, dtype=torch.bfloat16)), nn.Parameter(torch.zeros(4))]
    sharded = ShardedOptimizer(weights, torch.optim.SGD, reduces_gradients=True, lr=1.0)
    for weight in weights:
        weight.grad = torch.full_like(weight, rank + 1)
    norm = sharded.clip_grad_norm_(1.0)
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm.item(), 12**0.5 * 2, rtol=2**-8, atol=0)
    sharded.step()
    for weight in weights:
        torch.testing.assert_close(weight.detach().float(), torch.full(weight.shape, -(12**-0.5)), rtol=2**-7, atol=0)


def test_the_norm_of_many_dtypes_is_the_same_on_all_ranks():
    spawn(clip_one_of_many_dtypes, 3)


def clip_large_gradients(rank, dtypes):
    """Clip gradients whose squares exceed the range of float32, next to some of other dtypes."""
    weights = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in zip((8, 4), dtypes, strict=True)]
    sharded = ShardedOptimizer(weights, torch.optim.SGD, reduces_gradients=True, lr=1.0)
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e30 if weight.dtype == torch.float64 else 1.0)
    norm = sharded.clip_grad_norm_(1.0)
    assert norm.dtype == torch.float64
    torch.testing.assert_close(norm.item(), sum(w.numel() for w in weights if w.dtype == torch.float64) ** 0.5 * 1e30)
    sharded.step()
    for weight in weights:
        expected = -1e30 / norm.item() if weight.dtype == torch.float64 else 0.0
        torch.testing.assert_close(weight.detach().double(), torch.full(weight.shape, expected, dtype=torch.float64))


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float64), (torch.float32, torch.float64)])
def test_the_norm_of_float64_gradients_has_their_range(world_size, dtypes):
    spawn(clip_large_gradients, world_size, dtypes)


def give_up_a_step(rank):
    model, sharded, twin, plain = pair(torch.optim.SGD, lr=0.1)
    loss_of(model, 0, own_part(rank)).backward()
    sharded.clip_grad_norm_(1.0)
    train(model, sharded, 1, own_part(rank))  # as a user does after a norm that is not finite
    train(twin, plain, 1)
    assert_same(model, twin, rtol=2e-6, atol=2e-6)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert sharded.traffic.num_bytes == 8 * trained

    sharded.zero_grad()
    loss_of(model, 2, own_part(rank)).backward()
    sharded.clip_grad_norm_(1.0)
    loss_of(model, 3, own_part(rank)).backward()
    for what in (sharded.step, lambda: sharded.clip_grad_norm_(1.0)):
        with pytest.raises(RuntimeError, match=r"rank 0: a backward after clip_grad_norm_\(\); allowed: step"):
            what()


def test_a_step_may_be_given_up_after_clipping_but_not_mixed_with_another():
    spawn(give_up_a_step, 2)


def one_parameter(rank):
    weight = nn.Parameter(torch.ones(5))
    sharded = ShardedOptimizer([weight], torch.optim.SGD, reduces_gradients=True, lr=1.0)
    for _ in range(2):
        sharded.zero_grad()
        weight.mul(rank + 1.0).sum().backward()
        sharded.step()
    assert torch.equal(weight.detach(), torch.full((5,), -3.0))
    assert len(sharded.state) <= (rank == 0)


def test_more_ranks_than_parameters():
    spawn(one_parameter, 3)


def reduce_strided(rank):
    """Reduce gradients whose memory layout differs from their parameters' on one rank only."""
    start = torch.arange(6.0).reshape(2, 3)
    weights = [nn.Parameter(value.clone()) for value in (start, start.T.contiguous().T) * 2]
    for number, weight in enumerate(weights):  # owners alternate, so the odd layout is the owner's or the other rank's
        gradient = start + rank
        weight.grad = gradient.T.contiguous().T if (rank == 1) == (number < 2) else gradient
    with counted():  # asserts that all tensors sent are contiguous
        ShardedOptimizer(weights, torch.optim.SGD, reduces_gradients=True, lr=1.0).step()
    for weight in weights:
        assert torch.equal(weight.detach(), torch.full((2, 3), -0.5))

    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    sharded = ShardedOptimizer(table.parameters(), torch.optim.SGD, reduces_gradients=True, lr=1.0)
    with pytest.raises(RuntimeError, match=r"rank 0: ValueError: a sparse gradient of shape \[4, 2\] was given"):
        sharded.step()


def test_gradients_of_any_strides_are_reduced_and_sparse_ones_refused():
    spawn(reduce_strided, 2)


def reduce_zeros_without_memory(rank):
    """Each rank has such a gradient, of the other one's parameter and of its own."""
    weights = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    sum(weight.sgn().sum() if number // 2 == rank else weight.sum() for number, weight in enumerate(weights)).backward()
    ShardedOptimizer(weights, torch.optim.SGD, reduces_gradients=True, lr=1.0).step()
    return torch.stack([weight.detach() for weight in weights])


def test_a_gradient_may_be_zeros_without_memory():
    assert torch.equal(torch.stack(spawn(reduce_zeros_without_memory, 2)), torch.full((2, 4, 3), 0.5))


def reduce_in_pairs(rank):
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = pairs[rank % 2]
    model, twin = network(torch.float64, seed=rank % 2), network(torch.float64, seed=rank % 2)
    sharded = ShardedOptimizer(
        model.parameters(), torch.optim.AdamW, process_group=group, reduces_gradients=True, **ADAMW
    )
    plain = torch.optim.AdamW(twin.parameters(), **ADAMW)
    for step in range(3):
        train(model, sharded, step, own_part(rank, group))
        train(twin, plain, step)
        assert_same(model, twin, rtol=1e-10, atol=1e-10)
    for net, optimizer, part in ((model, sharded, own_part(rank, group)), (twin, plain, slice(None))):
        optimizer.zero_grad()
        loss_of(net, 3, part).backward()
    ours, theirs = sharded.clip_grad_norm_(1.0), nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    torch.testing.assert_close(ours.double(), theirs)


def test_sub_groups_average_among_themselves():
    spawn(reduce_in_pairs, 4)


def freeze_after_backward(rank):
    """Freeze parameters that have a gradient, which may differ between ranks."""
    model, sharded, _, _ = pair(torch.optim.SGD, lr=0.1)
    loss_of(model, 0, own_part(rank)).backward()
    model[0].requires_grad_(False)
    sharded.step()
    for (name, ours), theirs in zip(model.named_parameters(), network().parameters(), strict=True):
        assert torch.equal(ours, theirs) == (name.startswith("0.") or name == "2.bias"), name
    model[0].requires_grad_(True)
    train(model, sharded, 1, own_part(rank))
    every = [None] * 2
    dist.all_gather_object(every, [value.detach().cpu() for value in model.parameters()])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*every, strict=True))


def test_what_is_frozen_after_its_backward_stays_as_it_is():
    spawn(freeze_after_backward, 2)
