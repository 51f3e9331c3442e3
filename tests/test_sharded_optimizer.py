"""Ten steps of the sharded optimizer against the unsharded one, through the course's interface."""

import copy

import numpy
import pytest
import torch
from torch import nn

from tests.adapters import get_sharded_optimizer
from tests.distributed.models import Tied, Toy
from tests.distributed.ranks import spawn


def train_ten_steps(rank, make_model):
    torch.manual_seed(42)
    model = make_model()
    twin = copy.deepcopy(model)
    options = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
    sharded = get_sharded_optimizer(model.parameters(), torch.optim.AdamW, **options)
    plain = torch.optim.AdamW(twin.parameters(), **options)
    before = [value.detach().clone() for value in model.parameters()]
    for _ in range(10):
        x, y = torch.rand(32, 10), torch.rand(32, 5)
        for net, optimizer in ((model, sharded), (twin, plain)):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            numpy.testing.assert_allclose(ours.detach().cpu(), theirs.detach().cpu(), rtol=1e-7)
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new) != new.requires_grad


@pytest.mark.parametrize("make_model", [Toy, Tied])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ten_steps_equal_those_of_the_unsharded_optimizer(make_model, world_size):
    spawn(train_ten_steps, world_size, make_model)
