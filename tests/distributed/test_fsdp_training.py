"""Fully sharded training equals one process with the whole batch."""

import pytest
import torch
from torch import nn

from cs336_systems.configs import MODEL_CONFIGS
from cs336_systems.distributed.fsdp import FullyShardedDataParallel
from cs336_systems.training import cross_entropy
from cs336_systems.transformer import TransformerLM
from tests.distributed.drawn import draw
from tests.distributed.ranks import spawn
from tests.distributed.steps import batch, finish, max_error


def train(net, rank=0, world_size=1):
    """Train for five steps with clipping; return the whole values."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-2)  # divided by less, rounding would grow
    clip = getattr(net, "clip_grad_norm_", lambda limit: nn.utils.clip_grad_norm_(net.parameters(), limit))
    for step in range(5):
        optimizer.zero_grad()
        inputs, labels = batch(step, rank, world_size)
        nn.functional.mse_loss(net(inputs, step), labels).backward()
        finish(net)
        clip(0.5)
        optimizer.step()
    return net.state_dict()


def errors_of_drawn_models(rank, world_size, seeds):
    """Map each seed to the largest difference from one process, and to whether anything was trained."""
    errors = {}
    for seed in seeds:
        sharded, alone = train(FullyShardedDataParallel(draw(seed)), rank, world_size), train(draw(seed))
        assert sharded.keys() == alone.keys()
        errors[seed] = max_error(sharded, alone)
    return errors


def check(world_size, seeds):
    for errors in spawn(errors_of_drawn_models, world_size, world_size, seeds):
        assert not {seed: error for seed, error in errors.items() if not error < 1e-6}


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_drawn_models_train_as_in_one_process(world_size):
    check(world_size, [3, 5, 8, 13])


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_fifty_drawn_models_train_as_in_one_process(world_size):
    check(world_size, range(50))


def losses_of_the_head(rank):
    """Return the loss of logits and that which the head computes itself, and the gradient of its rows for each."""
    found = []
    for is_fused in (False, True):
        torch.manual_seed(0)
        net = FullyShardedDataParallel(TransformerLM(MODEL_CONFIGS["tiny"], 16), torch.bfloat16)
        ids = torch.arange(32).view(2, 16)
        loss = net(ids, ids) if is_fused else cross_entropy(net(ids), ids)
        loss.backward()
        finish(net)
        found.append((float(loss), net.module.lm_head.weight.grad))
    return found


def test_the_head_computes_its_loss_from_a_gathered_weight():
    for (plain, gradient), (fused, its) in spawn(losses_of_the_head, 2):
        assert abs(fused - plain) < 1e-3 * plain
        assert float((its - gradient).norm() / gradient.norm()) < 2e-2
