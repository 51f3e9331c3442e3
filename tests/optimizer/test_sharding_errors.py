"""Errors of a sharded optimizer, and the ranks that raise them."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from cs336_systems.optimizer.master_weights import MasterWeightAdamW
from tests.distributed.ranks import spawn
from tests.distributed.steps import error_of
from tests.optimizer.beside import ADAMW, loss_of, network


def misuse(rank):
    weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentum'"):
        ShardedOptimizer([weight], torch.optim.AdamW, momentum=0.9)
    with pytest.raises(ValueError, match=r"Invalid learning rate: -1"):
        ShardedOptimizer([weight], torch.optim.AdamW, lr=-1.0)
    with pytest.raises(ValueError, match="empty parameter list"):
        ShardedOptimizer([], torch.optim.AdamW)
    with pytest.raises(ValueError, match="more than one parameter group"):
        ShardedOptimizer([{"params": [weight]}, {"params": [weight]}], torch.optim.AdamW, **ADAMW)


def test_errors_are_the_optimizers_own():
    spawn(misuse, 2)


def refuse_on_one_rank(rank):
    """Return the errors in the group of ranks 1 and 2 if the optimizer refuses a parameter of one of them."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return []

    def weight(size, dtype=torch.float32):
        return nn.Parameter(torch.ones(size, dtype=dtype))

    shard = partial(ShardedOptimizer, optimizer_cls=MasterWeightAdamW, process_group=group)
    sharded = shard([weight(4)])
    return [
        error_of(shard, [weight(8, torch.float16), weight(4)]),
        error_of(shard, [weight(8, torch.float16), weight(4, torch.float16)]),
        error_of(sharded.add_param_group, {"params": [weight(2, torch.float16)]}),
    ]


def test_a_parameter_that_the_optimizer_refuses_raises_the_same_on_every_rank():
    words = "ValueError: a parameter of torch.float16 was given; allowed: float32, bfloat16"
    expected = [f"RuntimeError: rank {first}: {words}" for first in (1, 1, 2)]
    assert spawn(refuse_on_one_rank, 3) == [[], expected, expected]


def need_a_closure(rank):
    return error_of(ShardedOptimizer, [nn.Parameter(torch.zeros(2))], torch.optim.LBFGS)


def test_an_optimizer_that_minimizes_a_closure_is_refused():
    (error,) = set(spawn(need_a_closure, 2))
    assert error.startswith("ValueError: optimizer_cls=LBFGS was given, which minimizes a closure over all parameters;")


def miss_a_gradient(rank):
    model = network()
    sharded = ShardedOptimizer(model.parameters(), torch.optim.AdamW, reduces_gradients=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss_of(model, 0).backward()
    model[3].weight.grad = model[0].bias.grad = None
    message = rf"rank {rank}: 2 parameters have no gradient; allowed with reduces_gradients: a backward that reaches"
    for what in (sharded.step, lambda: sharded.clip_grad_norm_(1.0)):
        with pytest.raises(RuntimeError, match=message):
            what()
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_missing_gradient_is_an_error_that_names_the_rank():
    spawn(miss_a_gradient, 2)
