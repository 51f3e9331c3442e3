"""Ten steps of the sharded optimizer against the unsharded one, through the course's interface."""

import copy

import numpy
import pytest
import torch
from torch import nn

from tests.adapters import get_sharded_optimizer
from tests.distributed.ranks import spawn


class ToyModel(nn.Module):
    """Model with frozen parameters."""

    def __init__(self):
        super().__init__()
        self.fixed = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)
        self.fc1, self.fc2, self.fc3 = (nn.Linear(10, 10, bias=False), nn.Linear(10, 50), nn.Linear(50, 5, bias=False))
        self.fc2.bias.requires_grad_(False)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class TiedModel(nn.Module):
    """Model in which two layers share a weight."""

    def __init__(self):
        super().__init__()
        sizes = [(10, 10), (10, 50), (50, 10), (10, 50), (50, 5)]
        self.layers = nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)
        self.layers[3].weight = self.layers[1].weight

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


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
        for one, optimizer in ((model, sharded), (twin, plain)):
            optimizer.zero_grad()
            nn.functional.mse_loss(one(x), y).backward()
            optimizer.step()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            numpy.testing.assert_allclose(ours.detach().cpu(), theirs.detach().cpu(), rtol=1e-7)
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new) != new.requires_grad


@pytest.mark.parametrize("make_model", [ToyModel, TiedModel])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ten_steps_equal_those_of_the_unsharded_optimizer(make_model, world_size):
    spawn(train_ten_steps, world_size, make_model)
