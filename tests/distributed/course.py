"""The course's training loop on a rank, for any of the adapters' wrappers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.distributed.ranks import spawn
from tests.distributed.steps import backward, batch, seeded, values

NUM_STEPS = 5
History = list[dict[str, Tensor]]


def train_on_rank(
    rank: int,
    model: type[nn.Module],
    wrap: Callable[..., nn.Module],
    wrap_args: tuple[Any, ...],
    on_batch_start: Callable[..., None] | None,
    on_after_backward: Callable[..., None] | None,
    world_size: int,
) -> tuple[dict[str, Tensor], list[str], History]:
    """Return the rank's initial values, the wrapper's names, and the values after wrapping and after each step."""
    module = seeded(model, rank)
    own = values(module)
    net = wrap(module, *wrap_args)
    history = [values(net)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(NUM_STEPS):
        if on_batch_start is not None:
            on_batch_start(net, optimizer)
        optimizer.zero_grad()
        backward(net, *batch(step, rank, world_size))
        if on_after_backward is not None:
            on_after_backward(net, optimizer)
        optimizer.step()
        history.append(values(net))
    return own, [name for name, _ in net.named_parameters()], history


def check_against_single_process(
    model: type[nn.Module],
    wrap: Callable[..., nn.Module],
    wrap_args: tuple[Any, ...],
    on_batch_start: Callable[..., None] | None,
    on_after_backward: Callable[..., None],
) -> None:
    """Check that ranks start from rank 0's values and that every step equals a single process."""
    ranks = spawn(train_on_rank, 2, model, wrap, wrap_args, on_batch_start, on_after_backward, 2)
    expected = train_on_rank(0, model, lambda module: module, (), None, None, 1)[2]
    (own, names, _), (other, _, _) = ranks[0], ranks[1]
    for name, value in own.items():
        assert torch.equal(value, other[name]) == (name == "constant"), "random values differ by rank before"
    assert names == [f"module.{name}" for name in own], "the wrapper registers nothing of its own"
    for _, _, history in ranks:
        assert len(history) == len(expected) == NUM_STEPS + 1
        torch.testing.assert_close(history, expected, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(history, ranks[0][2], rtol=0, atol=0)
    for name, value in expected[0].items():
        frozen = name in ("constant", "fc2.bias")
        assert torch.equal(value, expected[-1][name]) == frozen, "what is trained moves"
