"""A model with the sharded optimizer and its twin with the plain one, on the same batches."""

import copy

import torch
from torch import nn

from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from tests.distributed.steps import seeded

ADAMW = {"lr": 0.01, "weight_decay": 0.1}


def network(dtype=torch.float32, seed=0):
    """Build a model with tensors of 91, 13, 143, 11, 11, 11 and 55 elements; the fourth is frozen."""
    net = seeded(layers, seed)
    net[2].bias.requires_grad_(False)
    return net.to(dtype)


def layers():
    return nn.Sequential(
        nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 11), nn.LayerNorm(11), nn.Tanh(), nn.Linear(11, 5, bias=False)
    )


def loss_of(model, step, part=slice(None)):
    """Return the loss of a batch of 12 that is the same on every rank, or of a part of it."""
    generator = torch.Generator().manual_seed(step)
    weight = next(model.parameters())
    x, y = (torch.randn(12, n, generator=generator, device="cpu").to(weight)[part] for n in (7, 5))
    return nn.functional.mse_loss(model(x), y)


def assert_same(model, twin, rtol=0.0, atol=0.0):
    for (name, ours), (_, theirs) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, msg=lambda why, name=name: f"{name}: {why}")


class Beside:
    """Train a model and its twin, and assert after every step that they are bitwise equal."""

    def __init__(
        self,
        optimizer_cls=torch.optim.AdamW,
        *,
        make=network,
        params=nn.Module.parameters,
        process_group=None,
        loss_of=loss_of,
        **kwargs,
    ):
        self.model, self.loss_of = make(), loss_of
        self.twin = copy.deepcopy(self.model)
        kwargs = kwargs or ADAMW
        self.sharded = ShardedOptimizer(params(self.model), optimizer_cls, process_group=process_group, **kwargs)
        self.plain = optimizer_cls(params(self.twin), **kwargs)
        self.both = (self.model, self.sharded), (self.twin, self.plain)

    def train(self, steps, before_step=lambda model, optimizer, step: None):
        for step in steps:
            for model, optimizer in self.both:
                optimizer.zero_grad()
                self.loss_of(model, step).backward()
                before_step(model, optimizer, step)
                optimizer.step()
            assert_same(self.model, self.twin)
