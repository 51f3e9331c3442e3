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
from tests.optimizer.beside import ADAMW, Beside, assert_same, loss_of, network


def misuse(rank):
    weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentum'"):
        ShardedOptimizer([weight], torch.optim.AdamW, momentum=0.9)
    with pytest.raises(ValueError, match=r"Invalid learning rate: -1"):
        ShardedOptimizer([weight], torch.optim.AdamW, lr=-1.0)
    with pytest.raises(ValueError, match="empty parameter list"):
        ShardedOptimizer([], torch.optim.AdamW)
    ShardedOptimizer([{"params": []}], torch.optim.AdamW).step()
    with pytest.raises(ValueError, match="more than one parameter group"):
        ShardedOptimizer([{"params": [weight]}, {"params": [weight]}], torch.optim.AdamW, **ADAMW)


def test_errors_are_the_optimizers_own():
    spawn(misuse, 2)


def give_sets(rank):
    """Return the errors of parameters in sets, which each rank would go through in another order."""
    weights, more = ([nn.Parameter(torch.ones(4)) for _ in range(2)] for _ in range(2))
    errors = []
    for make in (partial(ShardedOptimizer, optimizer_cls=torch.optim.SGD), MasterWeightAdamW):
        optimizer = make(weights)
        for unordered in (set, frozenset):
            errors.append(error_of(make, unordered(weights)))
            errors.append(error_of(make, [{"params": unordered(weights)}]))
            errors.append(error_of(optimizer.add_param_group, {"params": unordered(more)}))
        optimizer.add_param_group({"params": dict.fromkeys(more).keys()})
    return errors


def test_a_set_of_parameters_is_refused():
    for errors in spawn(give_sets, 2):
        assert len(errors) == 12
        for error in errors:
            assert "TypeError: a " in error and "set of parameters was given" in error, error
            assert error.endswith("allowed: an ordered collection, such as a list")


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


def refuse_arguments_on_one_rank(rank):
    """Return the errors of arguments that only rank 1 refuses, before it has a share of the parameters."""
    last, weights = rank == 1, [nn.Parameter(torch.zeros(2, 3))]
    shard = partial(ShardedOptimizer, optimizer_cls=torch.optim.SGD)
    return [
        error_of(partial(shard, weights, lr=-1.0 if last else 0.1)),
        error_of(partial(shard, weights, **({"no": 1} if last else {}))),
        error_of(shard, [] if last else weights),
        error_of(shard, set(weights) if last else weights),
        error_of(shard, [nn.Parameter(torch.zeros(3, 2).T if not last else torch.zeros(2, 6)[:, ::2])]),
        error_of(partial(ShardedOptimizer, weights, torch.optim.LBFGS if last else torch.optim.SGD)),
    ]


def test_what_one_rank_refuses_the_other_hears_of():
    heard, own = spawn(refuse_arguments_on_one_rank, 2)
    assert all(error.startswith(("ValueError: ", "TypeError: ")) for error in own)
    assert heard == [f"RuntimeError: rank 1: {error}" for error in own]


class PickySGD(torch.optim.SGD):
    """SGD that creates a state when it gets a parameter, and refuses some afterwards."""

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self.state[parameter]["start"] = parameter.detach().clone()
        if any(parameter.dtype == torch.float16 for parameter in self.param_groups[-1]["params"]):
            raise ValueError("no float16")


REFUSED = {
    "by the optimizer of one rank": (
        lambda rank, known: [torch.zeros(8, dtype=torch.float16), torch.zeros(4)],
        "rank 1: ValueError: no float16",
    ),
    "with gaps on one rank": (
        lambda rank, known: [torch.zeros(2, 6)[:, ::2] if rank else torch.zeros(2, 3)],
        "rank 1: ValueError: a parameter of shape [2, 3] with strides (6, 2) was given;",
    ),
    "transposed on one rank": (
        lambda rank, known: [torch.zeros(2, 3) if rank else torch.zeros(3, 2).T],
        "rank 1 holds parameter 6 of group 1 [2, 3] of torch.float32, rank 0 parameter 6 of group 1 [2, 3] of "
        "torch.float32 with strides (1, 2); allowed: the same model on every rank",
    ),
    "known to one rank": (
        lambda rank, known: [known if rank else torch.zeros(4)],
        "rank 1: ValueError: some parameters appear in more than one parameter group",
    ),
}


def add_what_is_refused(rank, kind):
    """Train before a refused group, after it, and after one that is accepted; return the error."""
    beside = Beside(PickySGD, params=lambda model: model[:4].parameters(), lr=0.1)
    beside.train(range(1))
    values = REFUSED[kind][0](rank, beside.model[0].bias)
    added = [value if isinstance(value, nn.Parameter) else nn.Parameter(value) for value in values]
    owners, state = dict(beside.sharded.owners), set(beside.sharded.state)
    error = error_of(beside.sharded.add_param_group, {"params": added})
    assert len(beside.sharded.param_groups) == 1
    assert beside.sharded.owners == owners
    assert set(beside.sharded.state) == state
    beside.train(range(1, 3))
    for model, optimizer in beside.both:
        optimizer.add_param_group({"params": model[5].parameters()})
    beside.train(range(3, 5))
    return error


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_group_leaves_the_optimizer_as_it_was_on_every_rank(kind):
    first, second = spawn(add_what_is_refused, 2, kind)
    assert first == second
    assert first.startswith(f"RuntimeError: {REFUSED[kind][1]}")


def need_a_closure(rank):
    return error_of(ShardedOptimizer, [nn.Parameter(torch.zeros(2))], torch.optim.LBFGS)


def test_an_optimizer_that_minimizes_a_closure_is_refused():
    (error,) = set(spawn(need_a_closure, 2))
    assert error.startswith("ValueError: optimizer_cls=LBFGS was given, which minimizes a closure over all parameters;")


def consolidate_elsewhere(rank):
    """Return the errors for ranks that are none of the group, on both ranks or one, and for another one on each."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return []
    sharded = ShardedOptimizer([nn.Parameter(torch.ones(4))], torch.optim.SGD, process_group=group)
    errors = [error_of(sharded.consolidate_state_dict, to) for to in (2, -1, True, None, 1.0, 2 * rank - 2, rank - 1)]
    sharded.consolidate_state_dict(1)
    return errors


def test_a_state_is_consolidated_on_a_rank_of_the_group():
    nothing, first, second = spawn(consolidate_elsewhere, 3)
    assert not nothing and first == second
    for to, error in zip((2, -1, True, None, 1.0, 2, 1), first, strict=True):
        assert error.startswith(f"ValueError: to={to!r} was given; allowed: a rank of the group, 0 to 1")


def miss_a_gradient(rank):
    model = network()
    sharded = ShardedOptimizer(model.parameters(), torch.optim.AdamW, reduces_gradients=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss_of(model, 0).backward()
    model[3].weight.grad = model[0].bias.grad = None
    message = r"rank 0: 2 parameters have no gradient; allowed with reduces_gradients: a backward that reaches"
    for what in (sharded.step, lambda: sharded.clip_grad_norm_(1.0)):
        with pytest.raises(RuntimeError, match=message):
            what()
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_missing_gradient_is_an_error_that_names_the_rank():
    spawn(miss_a_gradient, 2)


def fail_on_one_rank(rank, failing, kind):
    """Return the errors of a step, and of clipping, with gradients that one rank's do not fit; then train rightly."""
    model, twin = network(), network()
    model.append(nn.Embedding(3, 5, sparse=True))
    twin.append(nn.Embedding(3, 5, sparse=True)).load_state_dict(model.state_dict())
    sharded = ShardedOptimizer(model.parameters(), torch.optim.SGD, reduces_gradients=True, lr=0.1)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)

    def backward(net, sparse=False):
        loss_of(net[:6], 0).backward()
        net[6].weight.grad = torch.ones(3, 5).to_sparse() if sparse else torch.ones(3, 5)

    backward(model, sparse=rank == failing and kind == "sparse")
    if rank == failing and kind == "missing":
        model[0].bias.grad = None
    errors = [error_of(sharded.step), error_of(sharded.clip_grad_norm_, 1.0)]
    sharded.zero_grad()
    for net, optimizer in ((model, sharded), (twin, plain)):
        backward(net)
        optimizer.step()
    assert_same(model, twin, rtol=2e-6, atol=2e-6)
    return errors


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("kind", "message"),
    [("missing", "1 parameters have no gradient;"), ("sparse", "ValueError: a sparse gradient of shape [3, 5] was")],
)
def test_a_gradient_that_one_rank_alone_lacks_raises_the_same_on_every_rank(failing, kind, message):
    first, second = spawn(fail_on_one_rank, 2, failing, kind)
    assert first == second
    assert all(error.startswith(f"RuntimeError: rank {failing}: {message}") for error in first)


def backward_after_clipping(rank):
    """Return the error of a backward after clipping, where rank 0 owns every parameter and so keeps every gradient."""
    model = nn.Linear(4, 2, bias=False)
    sharded = ShardedOptimizer(model.parameters(), torch.optim.SGD, reduces_gradients=True, lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    sharded.clip_grad_norm_(1.0)
    model(torch.ones(1, 4)).sum().backward()
    return error_of(sharded.step)


def test_a_backward_after_clipping_raises_the_same_on_every_rank():
    first, second = spawn(backward_after_clipping, 2)
    assert first == second
    assert first.startswith("RuntimeError: rank 1: a backward after clip_grad_norm_();")


class FailingSGD(torch.optim.SGD):
    """SGD whose step fails once on a rank, after it has updated its parameters."""

    fails_on = -1

    def step(self):
        super().step()
        if FailingSGD.fails_on == dist.get_rank():
            FailingSGD.fails_on = -1
            raise ValueError("out of memory")


def values_by_rank(model):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, [value.detach().cpu() for value in model.parameters()])
    return every


def fail_in_the_step(rank, failing):
    """Return the errors of steps that fail on one rank; check that the ranks' parameters stay equal, then and later."""
    errors, own = [], slice(6 * rank, 6 * rank + 6)
    for reduces_gradients in (False, True):
        model = network()
        sharded = ShardedOptimizer(model.parameters(), FailingSGD, reduces_gradients=reduces_gradients, lr=0.1)
        for step in range(3):
            FailingSGD.fails_on = failing if step == 1 else -1
            sharded.zero_grad()
            loss_of(model, step, own if reduces_gradients else slice(None)).backward()
            before = [value.detach().clone() for value in model.parameters()]
            errors.append(error_of(sharded.step))
            first, second = values_by_rank(model)
            assert all(map(torch.equal, first, second))
            are_frozen = [not value.requires_grad for value in model.parameters()]
            assert list(map(torch.equal, before, model.parameters())) == are_frozen
    return errors


@pytest.mark.parametrize("failing", [0, 1])
def test_a_step_that_fails_on_one_rank_raises_the_same_on_every_rank_and_leaves_the_parameters_equal(failing):
    error = f"RuntimeError: rank {failing}: ValueError: out of memory"
    assert spawn(fail_in_the_step, 2, failing) == [["nothing", error, "nothing"] * 2] * 2


def freeze_on_one_rank(rank, freezing):
    """Freeze parameters of both owners on one rank; return the errors of steps that average, and of adding a group."""
    errors = []
    for reduces_gradients in (False, True):
        model = network()
        sharded = ShardedOptimizer(model.parameters(), torch.optim.SGD, reduces_gradients=reduces_gradients, lr=0.1)
        assert {sharded.owners[value] for value in model[0].parameters()} == {0, 1}
        for step in range(3):
            model[0].requires_grad_(step != 1 or rank != freezing)
            sharded.zero_grad()
            loss_of(model, step).backward()
            errors.append(error_of(sharded.step))
            if step == 1:
                errors.append(error_of(sharded.add_param_group, {"params": [nn.Parameter(torch.zeros(2))]}))
            first, second = values_by_rank(model)
            assert all(map(torch.equal, first, second))
    return errors


@pytest.mark.parametrize("freezing", [0, 1])
def test_a_parameter_that_one_rank_alone_freezes_leaves_the_ranks_equal_or_is_refused_on_all(freezing):
    first, second = spawn(freeze_on_one_rank, 2, freezing)
    assert first == second
    unlike = ["RuntimeError: rank 1 holds parameter 0 of group 0 [13, 7] of torch.float32", "without gradient"]
    refused = [error for error in first if error != "nothing"]
    assert [error == "nothing" for error in first] == [True, True, False, True, True, False, False, True]
    assert all(part in error for error in refused for part in unlike)


def shard_unlike(rank):
    """Map what differs on rank 1 to the error of constructing the optimizer."""

    def weights(*sizes):
        return [nn.Parameter(torch.zeros(size)) for size in sizes]

    first = rank == 0
    frozen = weights(3, 4)
    frozen[1].requires_grad_(first)
    shard = partial(ShardedOptimizer, optimizer_cls=torch.optim.SGD)
    return {
        "order": error_of(shard, weights(3, 4) if first else weights(4, 3)),
        "number": error_of(shard, weights(3, 4) if first else weights(3)),
        "frozen": error_of(shard, frozen),
        "SGD": error_of(partial(ShardedOptimizer, weights(3), torch.optim.SGD if first else torch.optim.Adagrad)),
        "reduces_gradients": error_of(partial(shard, weights(3), reduces_gradients=first)),
    }


def test_unlike_parameters_and_arguments_raise_the_same_on_every_rank():
    first, second = spawn(shard_unlike, 2)
    assert first == second
    for kind, error in first.items():
        assert error.startswith("RuntimeError: rank 1 ") and "rank 0 " in error, (kind, error)


def shard_unlike_groups(rank):
    """Return the errors of parameter groups that differ between the ranks."""
    one, two = (nn.Parameter(torch.ones(size)) for size in (1, 10))
    groups = [{"params": [one]}, {"params": [two]}] if rank else [{"params": [one, two]}]
    shard = partial(ShardedOptimizer, optimizer_cls=torch.optim.SGD)
    sharded = shard([one])
    return [
        error_of(partial(shard, lr=0.1), groups),
        error_of(partial(shard, lr=0.1 * (rank + 1)), [one, two]),
        error_of(shard, [{"params": [one], "weight_decay": torch.tensor(0.1 * rank)}]),
        error_of(sharded.add_param_group, {"params": [two], "lr": 0.1 * rank}),
    ]


def test_unlike_groups_and_options_are_refused_on_every_rank():
    first, second = spawn(shard_unlike_groups, 2)
    assert first == second
    assert all(error.startswith("RuntimeError: rank 1 ") and "same on every rank" in error for error in first)


def fail_in_a_closure(rank):
    """Return each step's error, and the parameters after it, where rank 0's closure fails in the second."""
    parameters = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizer = ShardedOptimizer(parameters, torch.optim.SGD, lr=0.1)
    steps = []
    for step in range(3):

        def closure(step=step):
            for parameter in parameters:
                parameter.grad = torch.full((4,), step + 1.0)
            if rank == 0 and step == 1:
                raise ValueError("no loss")
            return torch.tensor(1.0)

        steps.append((error_of(optimizer.step, closure), [parameter[0].item() for parameter in parameters]))
    return steps


def test_a_closure_that_fails_on_one_rank_fails_the_step_on_all():
    first, second = spawn(fail_in_a_closure, 2)
    assert first == second
    errors, values = zip(*first, strict=True)
    assert errors == ("nothing", "RuntimeError: rank 0: ValueError: no loss", "nothing")
    assert values[0] == values[1] == pytest.approx([0.9, 0.9]) and values[2] == pytest.approx([0.6, 0.6])
