"""Every strategy and optimizer on a rank, for any backend and device."""

from functools import partial

import torch
from torch import Tensor, nn

import tests.distributed.backends  # noqa: F401, which are registered in the ranks too that run this
from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from cs336_systems.optimizer.master_weights import MasterWeightAdamW
from tests.distributed.models import FEATURES_IN, FEATURES_OUT, Blocks, Buffered, Mixed, Odd, Tied, Toy
from tests.distributed.steps import STRATEGIES, backward, batch, finish, seeded, train, values

MODELS = {
    "toy": Toy,
    "tied": Tied,
    "odd": Odd,
    "blocks": Blocks,
    "buffered": Buffered,
    "float64": partial(Mixed, torch.float64),
}
OPTIMIZERS = {"sgd": partial(torch.optim.SGD, lr=0.1), "master weights": partial(MasterWeightAdamW, lr=0.01)}
ALONE = "alone"
"""Key of the reference: one process with the whole batch."""

Trained = dict[tuple[str, str], dict[str, Tensor]]


class WithAnEmptyParameter(nn.Module):
    """Model with an empty parameter and a frozen one."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(FEATURES_IN, 16)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.fc2 = nn.Linear(16, FEATURES_OUT, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).tanh()) + self.empty.sum()


def train_everything(rank: int, world_size: int) -> Trained:
    """Map (model, strategy) and (optimizer, averaging) to the values after three steps."""
    results = {}
    for model, build in MODELS.items():
        results[model, ALONE] = train(seeded(build), steps=3)
        for strategy, wrap in STRATEGIES.items():
            results[model, strategy] = train(wrap(seeded(build, rank)), rank, world_size, steps=3)
    for name, make in OPTIMIZERS.items():
        net = seeded(WithAnEmptyParameter)
        results[name, ALONE] = clip_and_step(net, make(net.parameters()))
        for strategy, wrap in STRATEGIES.items():
            net = wrap(seeded(WithAnEmptyParameter, rank))
            optimizer = ShardedOptimizer(net.parameters(), make)
            results[name, strategy] = clip_and_step(net, optimizer, rank, world_size)
        net = seeded(WithAnEmptyParameter)
        optimizer = ShardedOptimizer(net.parameters(), make, reduces_gradients=True)
        results[name, "the optimizer"] = clip_and_step(net, optimizer, rank, world_size)
        optimizer.consolidate_state_dict()
    return results


def clip_and_step(
    net: nn.Module, optimizer: torch.optim.Optimizer, rank: int = 0, world_size: int = 1
) -> dict[str, Tensor]:
    for step in range(3):
        optimizer.zero_grad()
        backward(net, *batch(step, rank, world_size))
        finish(net)
        clip = getattr(optimizer, "clip_grad_norm_", partial(nn.utils.clip_grad_norm_, net.parameters()))
        assert clip(0.1) > 0.1
        optimizer.step()
    return values(net)


def check_everything(trained: Trained) -> None:
    """Check that the ranks' values equal those of one process."""
    for (what, how), results in trained.items():
        alone = trained[what, ALONE]
        rtol, atol = (1e-3, 1e-4) if what == "master weights" else (1e-5, 1e-6)  # Adam divides a gradient by its size
        torch.testing.assert_close(
            results, alone, rtol=rtol, atol=atol, msg=lambda why, case=(what, how): f"{case}: {why}"
        )
