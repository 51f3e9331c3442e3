"""Loss scaling with a sharded optimizer: an overflow on one rank skips the step on all ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.distributed.ddp import OverlappedDDP
from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from tests.distributed.ranks import spawn
from tests.distributed.steps import error_of, finish
from tests.optimizer.beside import assert_same, loss_of, network

MAX_NORM = 0.3


def train_with_an_overflow(rank, reduces_gradients, clips):
    """Overflow on rank 2 of the group of ranks 1 and 2, in the second of four steps; return the rank's final scale."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    model, twin = network(), network()
    net = model if reduces_gradients else OverlappedDDP(model, process_group=group)
    sharded = ShardedOptimizer(
        net.parameters(), torch.optim.SGD, process_group=group, reduces_gradients=reduces_gradients, lr=0.1
    )
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=16.0)
    for step in range(4):
        overflows = step == 1
        (model if clips else sharded).zero_grad()
        loss = loss_of(net, step, slice(6 * (rank - 1), 6 * rank))
        scaler.scale(loss * torch.inf if overflows and rank == 2 else loss).backward()
        finish(net)
        if clips:
            scaler.unscale_(sharded)
            sharded.clip_grad_norm_(MAX_NORM)
        scaler.step(sharded)
        scaler.update()
        if not overflows:
            plain.zero_grad()
            loss_of(twin, step).backward()
            norm = nn.utils.clip_grad_norm_(twin.parameters(), MAX_NORM if clips else torch.inf)
            assert norm > MAX_NORM
            plain.step()
        assert_same(model, twin, rtol=2e-6, atol=2e-6)
    trained = [parameter.nbytes for parameter in model.parameters() if parameter.requires_grad]
    moves, more = (2, 1 + clips) if reduces_gradients else (1, 0)
    sent = sharded.traffic.num_bytes, sharded.traffic.calls
    assert sent == (moves * sum(trained) + 4 * more, moves * len(trained) + more)
    return scaler.get_scale()


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("reduces_gradients", [False, True])
def test_an_overflow_on_one_rank_skips_the_step_on_all(reduces_gradients, clips):
    scales = spawn(train_with_an_overflow, 3, reduces_gradients, clips)
    assert scales == [None, 16.0 if reduces_gradients else 8.0, 8.0]


def step_without_gradients(rank, ranks_without):
    model = network()
    scaler = torch.amp.GradScaler(torch.get_default_device().type)
    sharded = ShardedOptimizer(model.parameters(), torch.optim.SGD, reduces_gradients=True)
    loss = scaler.scale(loss_of(model, 0))
    if rank not in ranks_without:
        loss.backward()
    return error_of(scaler.step, sharded)


@pytest.mark.parametrize("ranks_without", [(0, 1), (0,), (1,)])
def test_a_rank_without_gradients_says_so_under_a_scaler_too(ranks_without):
    first, second = spawn(step_without_gradients, 2, ranks_without)
    assert first == second
    assert first.startswith(f"RuntimeError: rank {ranks_without[0]}: 6 parameters have no gradient;")
