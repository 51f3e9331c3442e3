"""State of a sharded optimizer: divided in training, whole in a checkpoint, divided again over other ranks."""

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.configs import MODEL_CONFIGS
from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from cs336_systems.optimizer.master_weights import MasterWeightAdamW
from cs336_systems.transformer import TransformerLM
from tests.distributed.ranks import spawn
from tests.optimizer.beside import ADAMW, Beside, assert_same, loss_of, network


def assert_same_state(ours, theirs):
    """Compare states, of which ours is on the CPU."""
    assert ours["param_groups"] == theirs["param_groups"]
    assert list(ours["state"]) == sorted(theirs["state"])
    for number, state in theirs["state"].items():
        assert list(ours["state"][number]) == list(state)
        for name, value in state.items():
            torch.testing.assert_close(ours["state"][number][name], value.cpu(), rtol=0, atol=0)


def bytes_of_state(rank, freeze):
    model = TransformerLM(MODEL_CONFIGS["tiny"], 8)
    model.token_embeddings.requires_grad_(not freeze)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW)
    model(torch.arange(8)[None]).square().mean().backward()
    optimizer.step()
    owned = {parameter for parameter in model.parameters() if optimizer.owners[parameter] == rank}
    assert set(optimizer.state) == {parameter for parameter in owned if parameter.requires_grad}
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    return sum(moment.nbytes for moment in moments), 8 * trained


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
def test_each_rank_keeps_its_share_of_the_state(world_size, freeze):
    """A frozen large parameter does not unbalance the shares."""
    held = spawn(bytes_of_state, world_size, freeze)
    whole = held[0][1]
    assert sum(part for part, _ in held) == whole
    assert max(part for part, _ in held) <= 1.1 * whole / world_size


def consolidate(rank, optimizer_cls, options):
    beside = Beside(optimizer_cls, **options)
    hint = rf"on rank {rank}, which holds a part of the state; allowed: after consolidate_state_dict\(to=this rank\)"
    for to in range(3):
        beside.train([to])
        for value in beside.model.parameters():
            if value.requires_grad:
                beside.sharded.state[value]  # torch's state is a defaultdict: reading makes an empty entry
        with pytest.raises(RuntimeError, match=hint):
            beside.sharded.state_dict()
        beside.sharded.consolidate_state_dict(to)
        if rank == to:
            whole = beside.sharded.state_dict()
            assert_same_state(whole, beside.plain.state_dict())
            model = copy.deepcopy(beside.model)
            plain = optimizer_cls(model.parameters())
            plain.load_state_dict(copy.deepcopy(whole))
            twin = copy.deepcopy(beside.twin)
            again = optimizer_cls(twin.parameters())
            again.load_state_dict(copy.deepcopy(beside.plain.state_dict()))
            for net, optimizer in ((model, plain), (twin, again)):
                loss_of(net, 10).backward()
                optimizer.step()
            assert_same(model, twin)
        else:
            with pytest.raises(RuntimeError, match=hint):
                beside.sharded.state_dict()


@pytest.mark.parametrize(
    ("optimizer_cls", "options"), [(torch.optim.AdamW, ADAMW), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})]
)
def test_consolidated_on_any_rank_it_is_the_unsharded_state(optimizer_cls, options):
    spawn(consolidate, 3, optimizer_cls, options)


def groups_of(model):
    return [{"params": model[:4].parameters(), "lr": 0.02}, {"params": model[5].parameters(), "weight_decay": 0.0}]


def masters():
    return network(torch.bfloat16)


CASES = {
    "adamw": (torch.optim.AdamW, network, {"lr": 0.1, "weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, network, {"lr": 0.1, "momentum": 0.9}),
    "masters": (MasterWeightAdamW, masters, {"lr": 0.1}),
}


def beside_of(case):
    optimizer_cls, make, options = CASES[case]
    return Beside(optimizer_cls, make=make, params=groups_of, **options)


def save(rank, case, path):
    beside = beside_of(case)
    beside.train(range(3))
    beside.sharded.param_groups[1]["lr"] = 0.05  # as a scheduler would
    beside.sharded.consolidate_state_dict(to=1)
    if rank == 1:
        torch.save({"model": beside.model.state_dict(), "optimizer": beside.sharded.state_dict()}, path)


def resume(rank, case, path):
    saved = torch.load(path)
    beside = beside_of(case)
    beside.train(range(5, 6))  # loading replaces this state
    for model, optimizer in beside.both:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
    assert beside.sharded.param_groups[1]["lr"] == 0.05
    assert all(beside.sharded.owners[parameter] == rank for parameter in beside.sharded.state)
    beside.train(range(3, 5))
    return weights_of(beside.model)


def weights_of(model):
    return {name: value.detach() for name, value in model.named_parameters()}


def train_unsharded(rank, case):
    """Train without interruption."""
    optimizer_cls, make, options = CASES[case]
    model = make()
    optimizer = optimizer_cls(groups_of(model), **options)
    for step in range(5):
        if step == 3:
            optimizer.param_groups[1]["lr"] = 0.05
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return weights_of(model)


@pytest.mark.parametrize("case", CASES)
def test_saved_on_two_ranks_it_goes_on_with_any_number_of_ranks(case, tmp_path):
    spawn(save, 2, case, tmp_path / "checkpoint.pt")
    (unsharded,) = spawn(train_unsharded, 1, case)
    for world_size in (1, 3, 4):
        for weights in spawn(resume, world_size, case, tmp_path / "checkpoint.pt"):
            for name, value in unsharded.items():
                assert torch.equal(value, weights[name]), (world_size, name)


def load_reordered_groups(rank):
    """Load a state whose groups are in another order than the parameters that they name by number."""

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(7, 7, bias=False), nn.Tanh(), nn.Linear(7, 7, bias=False), nn.Linear(7, 5))

    def groups(net, order):
        return [{"params": net[number].parameters()} for number in order]

    source = model()
    saved = torch.optim.AdamW(groups(source, (0, 2, 3)))
    loss_of(source, 0).backward()
    saved.step()
    state = saved.state_dict()
    state["param_groups"] = [state["param_groups"][number] for number in (2, 1, 0)]
    beside = Beside(make=model, params=lambda net: groups(net, (3, 2, 0)))
    for _, optimizer in beside.both:
        optimizer.load_state_dict(copy.deepcopy(state))
    beside.train(range(1, 3))


def test_a_state_is_loaded_by_the_numbers_of_its_parameters():
    spawn(load_reordered_groups, 2)


def load_what_does_not_fit(rank):
    beside = Beside()
    with pytest.raises(TypeError, match="to copy or to pickle"):
        copy.deepcopy(beside.sharded)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        beside.sharded.load_state_dict(Beside(params=groups_of).plain.state_dict())
    beside.train(range(2))
    beside.sharded.consolidate_state_dict()
    whole = [beside.sharded.state_dict() if rank == 0 else None]
    dist.broadcast_object_list(whole)
    beside.sharded.load_state_dict(whole[0])
    with pytest.raises(RuntimeError, match="holds a part of the state"):
        beside.sharded.state_dict()
    with pytest.raises(KeyError):
        beside.sharded.load_state_dict({"param_groups": beside.sharded.param_groups})
    beside.train(range(2, 4))
    beside.sharded.consolidate_state_dict()
    if rank == 0:
        assert_same_state(beside.sharded.state_dict(), beside.plain.state_dict())


def test_a_state_that_does_not_fit_is_refused_and_what_was_loaded_is_a_part_again():
    spawn(load_what_does_not_fit, 2)


def save_empty_shards(rank):
    beside = Beside(params=lambda model: [model[5].weight])
    beside.train(range(2))
    beside.sharded.consolidate_state_dict(to=2)
    whole = [beside.sharded.state_dict() if rank == 2 else None]
    dist.broadcast_object_list(whole, src=2)
    assert_same_state(whole[0], beside.plain.state_dict())
    beside.sharded.load_state_dict(whole[0])
    beside.train(range(2, 4))


def test_empty_shards_are_consolidated_and_loaded():
    spawn(save_empty_shards, 3)


def named(rank):
    beside = Beside(params=nn.Module.named_parameters)
    beside.train(range(1))
    beside.sharded.consolidate_state_dict(to=0)
    if rank == 0:
        assert_same_state(beside.sharded.state_dict(), beside.plain.state_dict())


def test_names_of_parameters_are_saved():
    spawn(named, 2)


def load_and_drop(rank):
    """Return whether any other rank's state is alive after it was loaded and dropped."""
    parameters = [nn.Parameter(torch.ones(size)) for size in (4, 5)]
    optimizer = ShardedOptimizer(parameters, torch.optim.SGD, lr=0.1, momentum=0.9)
    options = torch.optim.SGD(parameters, lr=0.1, momentum=0.9).state_dict()
    state = {number: {"momentum_buffer": torch.ones_like(value)} for number, value in enumerate(parameters)}
    others = [
        weakref.ref(state[number]["momentum_buffer"])
        for number, value in enumerate(parameters)
        if optimizer.owners[value] != rank
    ]
    optimizer.load_state_dict(options | {"state": state})
    del state
    gc.collect()
    return [reference() is not None for reference in others]


def test_a_loaded_state_of_other_ranks_is_not_kept():
    assert spawn(load_and_drop, 2) == [[False]] * 2


class CountingSGD(torch.optim.SGD):
    """SGD that counts its steps in state of no parameter."""

    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1
        return super().step(closure)


def hook_and_count(rank):
    """Return what all hooks of a state saw, in a sharded and a plain optimizer that count their steps."""
    every = []
    for make in (partial(ShardedOptimizer, optimizer_cls=CountingSGD), CountingSGD):
        model = network()
        optimizer = make(model.parameters(), lr=0.1, momentum=0.9)
        loss_of(model, 0).backward()
        optimizer.step()
        seen = []
        optimizer.register_state_dict_pre_hook(lambda one, seen=seen: seen.append(("save", len(one.state))))
        optimizer.register_state_dict_post_hook(lambda _, state: state | {"note": "of a hook"})
        optimizer.register_load_state_dict_pre_hook(
            lambda _, state: state | {"state": {key: each for key, each in state["state"].items() if key != "old"}}
        )
        optimizer.register_load_state_dict_post_hook(
            lambda one, seen=seen: seen.append(("load", one.state["steps"], "old" in one.state))
        )
        if isinstance(optimizer, ShardedOptimizer):
            for to in range(2):
                optimizer.consolidate_state_dict(to)
        state = optimizer.state_dict()
        optimizer.load_state_dict(state | {"state": state["state"] | {"steps": 5, "old": 1}})
        every.append((seen, state["note"], [str(key) for key in state["state"]]))
    return every


def test_hooks_and_state_of_no_parameter_are_as_without_sharding():
    for ours, plain in spawn(hook_and_count, 2):
        assert (*ours[:2], sorted(ours[2])) == (*plain[:2], sorted(plain[2]))
