"""Small models with the difficulties of data parallelism: frozen, tied, unused and mixed parameters, and buffers."""

from typing import Any

import torch
from torch import Tensor, nn

FEATURES_IN, FEATURES_OUT = 10, 5


class Toy(nn.Module):
    """The course's model with a constant parameter and a random frozen bias. Gradients of 400, 2000, 1000 B."""

    def __init__(self):
        super().__init__()
        self.constant = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)
        self.fc1 = nn.Linear(FEATURES_IN, 10, bias=False)
        self.fc2 = nn.Linear(10, 50)
        self.fc2.bias.requires_grad_(False)
        self.fc3 = nn.Linear(50, FEATURES_OUT, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.fc1(x).relu()).relu())


class Tied(nn.Module):
    """The course's model whose `fc4` and `fc2` share their weight. Gradients of 400, 2000, 2000, 1000 B."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(FEATURES_IN, 10, bias=False)
        self.fc2 = nn.Linear(10, 50, bias=False)
        self.fc3 = nn.Linear(50, 10, bias=False)
        self.fc4 = nn.Linear(10, 50, bias=False)
        self.fc4.weight = self.fc2.weight
        self.fc5 = nn.Linear(50, FEATURES_OUT, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.fc1, self.fc2, self.fc3, self.fc4):
            x = layer(x).relu()
        return self.fc5(x)


class Branches(nn.Module):
    """Branches of one shape. `order` selects branches and so the order of their gradients, 2000 + 200 B each."""

    def __init__(self, num_branches: int = 4):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(FEATURES_IN, 50) for _ in range(num_branches))

    def forward(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        total = x.new_zeros((), requires_grad=True)  # lets a rank that uses no branch call backward
        for branch in order:
            total = total + (branch + 1) * self.branches[branch](x).square().mean()
        return total


class Mixed(nn.Module):
    """Linear layers of one dtype around a float32 norm, as in mixed-precision training."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.fc1 = nn.Linear(FEATURES_IN, 16, dtype=dtype)
        self.norm = nn.LayerNorm(16)
        self.fc2 = nn.Linear(16, FEATURES_OUT, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.fc1(x.to(self.fc1.weight.dtype)).to(self.norm.weight.dtype))
        return self.fc2(hidden.to(self.fc2.weight.dtype)).to(x.dtype)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x, gradient.sum(0)


class Blocks(nn.Module):
    """Layers whose two gradients come from one node, as in a compiled block. Five of 440 bytes, then one of 220."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10, width) for width in (10, 10, 10, 10, 10, FEATURES_OUT))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = _Block.apply(x, layer.weight, layer.bias).relu()
        return x


class Odd(nn.Module):
    """Model with a scalar, an empty and a non-contiguous parameter. Gradients of 4, 0 and 200 bytes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()) + 1)
        self.empty = nn.Parameter(torch.rand(0, 3))
        self.weight = nn.Parameter(torch.rand(FEATURES_IN, FEATURES_OUT).T)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.linear(x, self.weight) + self.empty.sum()


class Buffered(nn.Module):
    """Model with random buffers of common dtypes; one is not persistent, one counts the forwards."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(FEATURES_IN, FEATURES_OUT)
        self.register_buffer("scale", torch.rand(FEATURES_OUT))
        self.register_buffer("cache", torch.rand(3, 4), persistent=False)
        self.register_buffer("expanded", torch.rand(3, 1).expand(3, 4), persistent=False)  # torch loads no such one
        self.register_buffer("transposed", torch.rand(3, 4).T)
        self.register_buffer("rotation", torch.rand(4, dtype=torch.complex64))
        self.register_buffer("negated", torch.rand(1, dtype=torch.complex64).conj().imag)  # and yet contiguous
        self.register_buffer("strided", torch.rand(1, 2)[:, 0])  # as well
        self.register_buffer("mask", torch.rand(16) > 0.5)
        self.register_buffer("short", torch.randint(0, 999, (4,), dtype=torch.int16))
        self.register_buffer("num_forwards", torch.tensor(0))
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        self.num_forwards += 1
        return self.fc(x) * self.scale
