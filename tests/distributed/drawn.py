"""Random models for sharding: odd sizes, tied, frozen, repeated and checkpointed layers, and ones that a step skips."""

import random

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.distributed.models import FEATURES_IN, FEATURES_OUT


class Drawn(nn.Module):
    """Linear layers of one width after an embedding or a linear layer, as the seed decides."""

    def __init__(self, seed: int):
        super().__init__()
        draw = random.Random(seed)
        width, depth = draw.randint(1, 17), draw.randint(2, 6)
        self.vocabulary = draw.randint(1, 23)
        self.first = (
            nn.Embedding(self.vocabulary, width) if draw.random() < 0.5 else nn.Linear(FEATURES_IN, width, bias=False)
        )
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=draw.random() < 0.5) for _ in range(depth))
        self.norms = nn.ModuleList(  # with a small eps, norms of two numbers amplify rounding
            nn.LayerNorm(width, eps=0.1) if draw.random() < 0.5 else nn.Identity() for _ in range(depth)
        )
        self.last = nn.Linear(width, FEATURES_OUT)
        if draw.random() < 0.5:
            self.layers[-1].weight = self.layers[0].weight
        for layer in self.layers:
            layer.weight.requires_grad_(draw.random() < 0.8)
        self.first.weight.requires_grad_(draw.random() < 0.8)
        self.skipped = draw.randrange(depth)
        self.repeated = draw.randrange(depth)
        self.stops_early = draw.random() < 0.5
        self.checkpointed = {number for number in range(depth) if draw.random() < 0.3}

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        if isinstance(self.first, nn.Embedding):
            x = self.first((x[:, :3].abs() * 10).long() % self.vocabulary).mean(1)
        else:
            x = self.first(x)
        for number in range(len(self.layers)):
            if number == self.skipped and step % 2:
                continue
            for _ in range(1 + (number == self.repeated)):
                with set_checkpoint_early_stop(self.stops_early):
                    x = self._checkpointed(x, number) if number in self.checkpointed else self._block(x, number)
        return self.last(x)

    def _checkpointed(self, x: Tensor, number: int) -> Tensor:
        return checkpoint(self._block, x, number, use_reentrant=False)

    def _block(self, x: Tensor, number: int) -> Tensor:
        return x + 0.5 * self.layers[number](self.norms[number](x).tanh())


def draw(seed: int) -> Drawn:
    """Build a model with the same values in every process."""
    torch.manual_seed(seed)
    with torch.device("cpu"):
        model = Drawn(seed)
    return model.to(torch.get_default_device())
