"""Misuse of sharded models and ranks that differ: one clear error on every rank, and no hang."""

import copy
import datetime
import os
import pickle
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems.distributed.fsdp import FullyShardedDataParallel
from cs336_systems.distributed.process_group import process_group
from tests.distributed.backends import LIKE_GLOO_ON_CUDA
from tests.distributed.models import Branches, Toy
from tests.distributed.ranks import ON_GPUS, RANKS, preload, spawn, spawn_processes
from tests.distributed.steps import backward, batch, error_of, finish, gradients, seeded

on_the_cpu = pytest.mark.skipif(ON_GPUS, reason="NCCL ends the process of a rank that waits too long")


def together(choose):
    """Wrap a model with the module that `choose` returns for it, to be gathered together."""
    net = nn.Sequential(nn.Linear(2, 3))
    return FullyShardedDataParallel(net, together=[choose(net)])


def in_another_order(is_reversed):
    """Wrap a model with two layers gathered by themselves, given as a set would be: in any order."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    return FullyShardedDataParallel(net, together=reversed(net) if is_reversed else net)


def wrap_differently(rank):
    """Map what differs to the error."""
    last = rank == 2
    half = torch.float16 if last else None
    return {
        "shape": error_of(FullyShardedDataParallel, nn.Linear(2, 3 + last)),
        "dtype": error_of(FullyShardedDataParallel, nn.Linear(2, 3, dtype=half)),
        "compute_dtype": error_of(FullyShardedDataParallel, nn.Linear(2, 3), half),
        "prefetch": error_of(lambda: FullyShardedDataParallel(nn.Linear(2, 3), prefetch=1 + last)),
        "together": error_of(together, lambda net: net if last else net[0]),
        "together in another order": error_of(in_another_order, last),
        "not in it": error_of(together, lambda net: nn.Linear(2, 3)),
        "no such dtype": error_of(FullyShardedDataParallel, nn.Linear(2, 3), torch.int32),
        "a byte": error_of(FullyShardedDataParallel, nn.Linear(2, 3), torch.float8_e5m2),
        "embedding": error_of(FullyShardedDataParallel, nn.Embedding(4, 3, max_norm=1.0)),
        "inner bag": error_of(FullyShardedDataParallel, nn.Sequential(nn.EmbeddingBag(4, 3, max_norm=2.0))),
        "no dtype": error_of(FullyShardedDataParallel, nn.Linear(2, 3), "bfloat16"),
        "complex": error_of(FullyShardedDataParallel, nn.Linear(2, 3, dtype=torch.complex64), torch.bfloat16),
        **{
            f"no such prefetch: {wrong}": error_of(partial(FullyShardedDataParallel, nn.Linear(2, 3), prefetch=wrong))
            for wrong in (3, -1, 1.0, True, "1")
        },
    }


def test_unlike_models_and_arguments_raise_the_same_on_every_rank():
    ranks = spawn(wrap_differently, 3)
    assert ranks[0] == ranks[1] == ranks[2]
    errors = ranks[0]
    for kind in ("shape", "dtype", "compute_dtype", "prefetch", "together"):
        assert errors[kind].startswith("RuntimeError: rank 2 ") and "rank 0 " in errors[kind], kind
    assert errors["together in another order"] == "nothing"
    assert errors["embedding"].startswith("ValueError: Embedding has max_norm=1.0; allowed: None")
    assert errors["inner bag"].startswith("ValueError: 0 has max_norm=2.0; allowed: None")
    assert errors["not in it"] == "ValueError: together has Linear, not in the model; allowed: modules of it"
    assert errors["no such dtype"].startswith("ValueError: compute_dtype=torch.int32 was given; allowed:")
    assert errors["a byte"].startswith("ValueError: compute_dtype=torch.float8_e5m2 was given; allowed:")
    assert errors["no dtype"].startswith("ValueError: compute_dtype='bfloat16' was given; allowed:")
    assert errors["complex"].endswith("but weight is complex; allowed: None")
    for wrong in (3, -1, 1.0, True, "1"):
        assert errors[f"no such prefetch: {wrong}"].startswith(f"ValueError: prefetch={wrong!r} was given; allowed: 0")


def refuse_on_one_rank(rank):
    """Return the errors of wrapping what only rank 1 refuses."""
    last, wrap = rank == 1, FullyShardedDataParallel
    hooked = nn.Linear(2, 3)
    if last:
        hooked.weight.register_hook(lambda _: None)
    return [
        error_of(partial(wrap, nn.Linear(2, 3), prefetch=3 if last else 1)),
        error_of(partial(wrap, nn.Linear(2, 3), torch.int32 if last else None)),
        error_of(partial(wrap, nn.Linear(2, 3), together=[nn.Linear(2, 3)] if last else [])),
        error_of(wrap, nn.Embedding(4, 3, max_norm=1.0 if last else None)),
        error_of(wrap, nn.Linear(2, 3, device="meta" if last else None)),
        error_of(wrap, hooked),
    ]


def test_what_one_rank_refuses_the_other_hears_of():
    heard, own = spawn(refuse_on_one_rank, 2)
    assert all(error.startswith("ValueError: ") for error in own)
    assert heard == [f"RuntimeError: rank 1: {error}" for error in own]


def step_of(net, inputs, order):
    net.zero_grad()
    net(inputs, order).backward()
    finish(net)


def leave_out_at_once(rank):
    """Return the error of a first step in which rank 1 uses another layer, and of the step after it."""
    net, inputs = FullyShardedDataParallel(seeded(Branches)), batch(0)[0]
    errors = [error_of(step_of, net, inputs, (0, 2) if rank == 1 else (0, 1))]
    errors.append(error_of(step_of, net, inputs, (0, 1, 2, 3)))
    plain = seeded(Branches)
    plain(inputs, (0, 1, 2, 3)).backward()
    own = gradients(net)
    for name, whole in gradients(plain).items():
        torch.testing.assert_close(own[name], whole.split(25)[rank] if whole.ndim == 2 else whole)
    return errors


def test_ranks_that_use_other_layers_in_the_first_step_raise_the_same_and_go_on():
    ranks = spawn(leave_out_at_once, 2)
    assert ranks[0] == ranks[1]
    (error, after) = ranks[0]
    assert "rank 0" in error and "branches.1" in error and "rank 1" in error and "branches.2" in error
    assert after == "nothing"


def differ_later(rank):
    """Map what rank 1 does differently after two good steps to the error, of groups that time out soon."""
    inputs, errors = batch(0)[0], {}

    def loss_without(net):
        return (
            net(inputs, (0, 1, 2)) if rank == 0 else net(inputs, (0, 1, 2)).detach() + net.module.branches[0].bias.sum()
        )

    def changed(net):
        if rank == 1:
            net.half()
        return net(inputs.to(next(net.parameters()).dtype), (0, 1, 2))

    different = {
        "layer": lambda net: net(inputs, (0, 2) if rank == 1 else (0, 1, 2)),
        "gradient": loss_without,
        "dtype": changed,
    }
    for kind, loss in different.items():
        group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
        net = FullyShardedDataParallel(seeded(Branches), process_group=group)
        for _ in range(2):
            step_of(net, inputs, (0, 1, 2))
        errors[kind] = error_of(lambda net=net, loss=loss: (loss(net).backward(), finish(net)))
    return errors


@on_the_cpu
@pytest.mark.skipif(RANKS == LIKE_GLOO_ON_CUDA, reason="a group of Python's does not tell its timeout")
def test_a_rank_that_leaves_out_a_layer_or_a_gradient_or_changes_a_dtype_later_raises_on_all_within_the_timeout():
    for rank, errors in enumerate(spawn_processes(differ_later, 2)):
        for kind, error in errors.items():
            assert error.startswith(f"RuntimeError: rank {rank}: ") and "failed" in error, (kind, error)
    assert "branches.2" in errors["layer"] and "average" in errors["gradient"] and "float16" in errors["dtype"]


def die(rank, folder):
    """Train for two steps on two ranks; then rank 1 ends, and rank 0 writes the error of its next step."""
    store = dist.FileStore(str(Path(folder, "store")), 2)
    with process_group(rank, 2, store, "gloo", 10.0):
        net = FullyShardedDataParallel(seeded(Toy))
        for step in range(3):
            if step == 2 and rank == 1:
                os._exit(0)
            error = error_of(lambda step=step: (backward(net, *batch(step)), finish(net)))
        Path(folder, "error").write_text(error, encoding="utf-8")
        os._exit(0)


@on_the_cpu
def test_a_rank_that_dies_raises_on_the_others(tmp_path):
    preload()
    ranks = [get_context("forkserver").Process(target=die, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert (tmp_path / "error").read_text(encoding="utf-8").startswith("RuntimeError: rank 0: ")


class Direct(nn.Module):
    """Model that uses a layer's weight outside of the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.layer(x.to(self.layer.weight.dtype)) + self.layer.weight.sum()


class TiedByHand(nn.Module):
    """Model whose head is the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)

    def forward(self, ids):
        return nn.functional.linear(self.embedding(ids), self.embedding.weight)

    def rank(self, ids):
        return self(ids).argsort(-1)


def misuse(rank):
    """Return the errors of direct use, of a sparse gradient, and of a forward that raises and the step after it."""
    errors, direct, tied = [], FullyShardedDataParallel(Direct()), FullyShardedDataParallel(TiedByHand())
    for has_graph in (True, False):
        with torch.set_grad_enabled(has_graph):
            errors.append(error_of(direct, torch.ones(1, 4)))
            errors.append(error_of(tied, torch.arange(6)))
    errors.append(error_of(direct.module, torch.ones(1, 4)))
    with torch.no_grad():
        errors.append(error_of(tied.module.rank, torch.arange(6)))
    sparse = FullyShardedDataParallel(nn.Embedding(4, 3, sparse=True))
    errors.append(error_of(sparse(torch.tensor([rank])).sum().backward))
    replicated = FullyShardedDataParallel(nn.EmbeddingBag(4, 3, mode="sum", sparse=True))
    replicated(torch.tensor([[rank]])).sum().backward()
    errors.append(error_of(finish, replicated))
    net = FullyShardedDataParallel(seeded(Toy))
    for step in range(3):
        if step:
            errors.append(error_of(net, torch.ones(2, 3)))
        backward(net, *batch(step))
        finish(net)
        assert not [layer for layer in net.modules() if "weight" in vars(layer)]
    return errors


def test_direct_use_and_sparse_gradients_are_refused_and_a_failed_forward_leaves_the_next_step_right():
    for *direct, sparse, replicated, shape, again in spawn(misuse, 2):
        for error, name in zip(direct, ["layer", "embedding"] * 3, strict=True):
            assert f"{name}.weight was used outside of its layer's forward" in error
        assert sparse == replicated == "ValueError: weight has a sparse gradient; allowed: dense gradients"
        assert "mat1 and mat2" in shape and "mat1 and mat2" in again


def use_rows(rank):
    """Map each way to take a rank's rows for the model to its error; check that the wrapped model stays right."""
    net, x = FullyShardedDataParallel(seeded(Toy, rank)), batch(0)[0]
    errors = {
        "wrap": error_of(FullyShardedDataParallel, net.module),
        "wrap the wrapper": error_of(FullyShardedDataParallel, net),
        "deepcopy": error_of(copy.deepcopy, net),
        "pickle": error_of(pickle.dumps, net),
        "tie": error_of(FullyShardedDataParallel, nn.Sequential(net.module.fc3)),
    }
    with torch.no_grad():
        errors["copy"] = error_of(copy.deepcopy(net.module), x)
        torch.testing.assert_close(net(x), seeded(Toy)(x))
        module = net.module
        del net
        errors["no wrapper"] = error_of(module, x)
    errors["wrap later"] = error_of(FullyShardedDataParallel, module)
    return errors


@pytest.mark.parametrize("world_size", [1, 2])
def test_rows_are_not_taken_for_the_whole_model(world_size):
    for errors in spawn(use_rows, world_size):
        for way in ("wrap", "wrap the wrapper", "tie", "wrap later"):
            assert errors[way].startswith("ValueError: ") and "one rank's rows" in errors[way], way
        for way in ("deepcopy", "pickle"):
            assert errors[way].startswith("TypeError: ") and "state_dict()" in errors[way], way
        for way in ("copy", "no wrapper"):
            assert errors[way].startswith("RuntimeError: fc1.weight holds one rank's rows"), way
