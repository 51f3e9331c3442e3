"""Misuse of data parallelism: the errors, the ranks that raise them, and a correct step afterwards."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from cs336_systems.distributed.ddp import BucketedDDP, FlatDDP, NaiveDDP, OverlappedDDP
from tests.distributed.models import Toy
from tests.distributed.ranks import spawn
from tests.distributed.steps import STRATEGIES, backward, batch, counted, error_of, gradients, mean_gradients, seeded

NOT_FINISHED = "before finish_gradient_synchronization()"


def build(rows=3, dtype=torch.float32, trained=True, extra=False, buffer=2, name="inner", expanded=False):
    module = nn.Module()
    module.first = nn.Linear(2, 2)
    setattr(module, name, nn.Linear(2, rows, dtype=dtype))
    getattr(module, name).weight.requires_grad_(trained)
    module.register_buffer("cache", torch.zeros(1).expand(2) if expanded else torch.zeros(buffer), persistent=False)
    if extra:
        module.extra = nn.Linear(2, 2)
    return module


MISMATCHES = {
    "shape": ({"rows": 4}, "inner.weight"),
    "dtype": ({"dtype": torch.float64}, "inner.weight"),
    "requires_grad": ({"trained": False}, "inner.weight"),
    "count": ({"extra": True}, "7 parameters and buffers"),
    "buffer": ({"buffer": 3}, "cache"),
    "memory": ({"expanded": True}, "cache [2] of torch.float32 with strides (0,)"),
    "name": ({"name": "other"}, "other.weight"),
}
"""The change of one rank's model, and what its error names."""


def wrap_unlike(rank):
    """Map (mismatch, strategy) to the error of wrapping models that differ on rank 2."""
    return {
        (kind, strategy): error_of(wrap, build(**(options if rank == 2 else {})))
        for kind, (options, _) in MISMATCHES.items()
        for strategy, wrap in STRATEGIES.items()
    }


def test_unlike_models_raise_the_same_on_every_rank():
    ranks = spawn(wrap_unlike, 3)
    assert ranks[0] == ranks[1] == ranks[2]
    for (kind, _), error in ranks[0].items():
        assert "rank 2" in error and "rank 0" in error and MISMATCHES[kind][1] in error, kind


UNLIKE_ARGUMENTS = {
    "strategy": (NaiveDDP, [{}, {}]),
    "broadcast_buffers": (NaiveDDP, [{}, {"broadcast_buffers": True}]),
    "find_unused_parameters": (OverlappedDDP, [{}, {"find_unused_parameters": True}]),
    "communication_dtype": (
        FlatDDP,
        [{"communication_dtype": torch.float16}, {"communication_dtype": torch.bfloat16}],
    ),
    "bucket_size_mb": (BucketedDDP, [{"bucket_size_mb": 25.0}, {"bucket_size_mb": 1e-5}]),
}
"""The strategy, and the arguments of other ranks and of rank 2."""


def wrap_with_unlike_arguments(rank):
    """Map what differs on rank 2 to the error."""
    last = rank == 2
    return {
        kind: error_of(partial(FlatDDP if last and kind == "strategy" else wrap, build(), **options[last]))
        for kind, (wrap, options) in UNLIKE_ARGUMENTS.items()
    }


def test_unlike_arguments_raise_the_same_on_every_rank():
    ranks = spawn(wrap_with_unlike_arguments, 3)
    assert ranks[0] == ranks[1] == ranks[2]
    for kind, error in ranks[0].items():
        assert error.startswith("RuntimeError: rank 2 wraps in ") and "rank 0 in " in error, kind
        assert all(str(value) in error for options in UNLIKE_ARGUMENTS[kind][1] for value in options.values()), kind


def sparse():
    module = nn.Linear(2, 2)
    module.register_buffer("mask", torch.eye(2).to_sparse())
    return module


def refuse_on_one_rank(rank):
    """Return the errors of wrapping in pairs what only rank 3 refuses."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    last = rank == 3
    wrap = partial(BucketedDDP, process_group=pairs[rank // 2])
    wrapped = wrap(build())
    return [
        error_of(partial(wrap, build(), bucket_size_mb=-1 if last else 25.0)),
        error_of(partial(wrap, build(), communication_dtype=torch.int32 if last else None)),
        error_of(wrap, nn.Sequential(nn.Embedding(4, 3, max_norm=1.0 if last else None))),
        error_of(wrap, nn.LazyLinear(2) if last else nn.Linear(2, 2)),
        error_of(wrap, nn.Linear(2, 2, device="meta" if last else None)),
        error_of(wrap, sparse() if last else nn.Linear(2, 2)),
        error_of(wrap, wrapped if last else build()),
    ]


def test_what_one_rank_refuses_the_other_ranks_of_its_group_hear_of():
    first, second, third, fourth = spawn(refuse_on_one_rank, 4)
    assert first == second == ["nothing"] * len(first)
    assert all(error.startswith("ValueError: ") for error in fourth)
    assert third == [f"RuntimeError: rank 3: {error}" for error in fourth]


def wrap_wrongly(rank):
    """Map each strategy to its errors for other dtypes, for complex parameters and for a load that assigns."""
    results = {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(Toy))
        results[strategy] = [
            error_of(partial(wrap, build(), communication_dtype=torch.int32)),
            error_of(partial(wrap, build(), communication_dtype="bfloat16")),
            error_of(partial(wrap, build(), communication_dtype=torch.float8_e4m3fn)),
            error_of(partial(wrap, build(dtype=torch.complex64), communication_dtype=torch.bfloat16)),
            error_of(wrap, nn.Sequential(nn.Embedding(4, 3, max_norm=1.0))),
            error_of(partial(net.load_state_dict, net.state_dict(), assign=True)),
            error_of(net.load_state_dict, net.state_dict()),
        ]
    return results


def test_arguments_that_would_lose_gradients_are_refused():
    for results in spawn(wrap_wrongly, 2):
        for integer, word, byte, rounded, renormalized, assigned, loaded in results.values():
            assert integer.startswith(
                "ValueError: communication_dtype=torch.int32 was given; allowed: a floating-point"
            )
            assert word.startswith("ValueError: communication_dtype='bfloat16' was given; allowed: a floating-point")
            assert byte.startswith("ValueError: communication_dtype=torch.float8_e4m3fn was given; allowed: a floating")
            assert rounded.startswith("ValueError: communication_dtype=torch.bfloat16 was given, but inner.weight is")
            assert renormalized.startswith("ValueError: 0 has max_norm=1.0; allowed: None")
            assert assigned.startswith("ValueError: assign=True was given; allowed: False")
            assert loaded == "nothing"


def replace_gradients(rank, world_size):
    """Map each strategy to its average if a hook that was registered after wrapping assigns a new gradient."""
    plain, results = seeded(Toy), {}
    backward(plain, *batch(0, rank, world_size))
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(Toy))
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda value: setattr(value, "grad", value.grad.clone()))
        for _ in range(2):
            net.zero_grad()
            backward(net, *batch(0, rank, world_size))
            net.finish_gradient_synchronization()
        results[strategy] = gradients(net)
    return results, gradients(plain)


def test_gradients_that_a_later_hook_replaces_are_averaged():
    ranks = spawn(replace_gradients, 2, 2)
    expected = mean_gradients([own for _, own in ranks])
    for results, _ in ranks:
        for averaged in results.values():
            torch.testing.assert_close(averaged, expected)


def wrap_unlike_in_pairs(rank):
    """Return the error of wrapping in pairs, if rank 3 differs from rank 2 and ranks 0 and 1 agree."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return error_of(partial(STRATEGIES["flat"], build(rows=3 + (rank == 3)), process_group=pairs[rank // 2]))


def test_unlike_models_in_a_sub_group_are_its_own_affair_and_called_by_their_global_ranks():
    *alike, second, third = spawn(wrap_unlike_in_pairs, 4)
    assert alike == ["nothing", "nothing"]
    assert second == third
    assert "rank 3" in second and "rank 2" in second and "inner.weight" in second


def backward_without_synchronization(net, loss):
    with net.no_sync():
        loss.backward()


def finish_wrongly(rank, world_size):
    """Map each strategy to its errors, the averaged gradients afterwards, and the calls of redundant finishes."""
    inputs, labels = batch(0, rank, world_size)
    plain = seeded(Toy)
    backward(plain, inputs, labels)
    results = {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(Toy))
        errors = {"finish first": error_of(net.finish_gradient_synchronization)}

        outs = [net(inputs).square().mean() for _ in range(3)]
        outs[0].backward()
        errors["forward"] = error_of(net, inputs)
        errors["state_dict"] = error_of(net.state_dict)
        errors["second backward"] = error_of(outs[1].backward)
        errors["second backward, no_sync"] = error_of(backward_without_synchronization, net, outs[2])
        net.finish_gradient_synchronization()
        net.zero_grad()

        with net.no_sync():
            backward(net, inputs, labels)
        errors["only no_sync"] = error_of(net.finish_gradient_synchronization)
        net.zero_grad()

        backward(net, inputs, labels)
        net.finish_gradient_synchronization()
        averaged = gradients(net)
        with counted() as traffic:
            net.finish_gradient_synchronization()
            with torch.no_grad():
                net(inputs)
            net.finish_gradient_synchronization()
        torch.testing.assert_close(gradients(net), averaged, rtol=0, atol=0)
        results[strategy] = errors, averaged, traffic.calls
    return results, gradients(plain)


def test_a_step_that_is_not_finished_raises_and_one_that_is_finished_twice_does_not():
    ranks = spawn(finish_wrongly, 2, 2)
    expected = mean_gradients([own for _, own in ranks])
    for results, _ in ranks:
        for errors, averaged, calls in results.values():
            assert errors["finish first"] == "nothing"
            assert f"forward {NOT_FINISHED}" in errors["forward"]
            assert f"state_dict() {NOT_FINISHED}" in errors["state_dict"]
            assert f"a second gradient of fc3.weight arrived {NOT_FINISHED}" in errors["second backward"]
            assert f"a second gradient of fc3.weight arrived {NOT_FINISHED}" in errors["second backward, no_sync"]
            assert "under no_sync() alone" in errors["only no_sync"]
            torch.testing.assert_close(averaged, expected)
            assert calls == 0


class Repeated(nn.Module):
    """Model that runs a layer twice, each time in a checkpoint."""

    def __init__(self, use_reentrant: bool):
        super().__init__()
        self.layer, self.use_reentrant = nn.Linear(10, 10), use_reentrant

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=self.use_reentrant)
        return x


def backward_through_checkpoints(rank, use_reentrant):
    """Map each strategy to error and gradients; return this rank's gradients too."""
    inputs = batch(0, rank, 2)[0].requires_grad_()
    plain = seeded(partial(Repeated, use_reentrant))
    plain(inputs).square().mean().backward()
    results = {}
    for strategy, wrap in STRATEGIES.items():
        net = wrap(seeded(partial(Repeated, use_reentrant)))
        error = error_of(net(inputs).square().mean().backward)
        net.finish_gradient_synchronization()
        results[strategy] = error, gradients(net)
    return results, gradients(plain)


def test_reentrant_checkpoints_of_a_repeated_layer_raise_with_the_way_out():
    for results, _ in spawn(backward_through_checkpoints, 2, True):
        for error, _ in results.values():
            assert "a second gradient of layer." in error and "use_reentrant=False" in error


def test_other_checkpoints_are_right():
    ranks = spawn(backward_through_checkpoints, 2, False)
    expected = mean_gradients([own for _, own in ranks])
    for results, _ in ranks:
        for error, averaged in results.values():
            assert error == "nothing"
            torch.testing.assert_close(averaged, expected)


def change_what_is_trained(rank):
    """Map each strategy to the errors of forwards after freezing, after wrapping again and after unfreezing."""
    inputs, labels = batch(0)
    results = {}
    for strategy, wrap in STRATEGIES.items():
        module = seeded(Toy)
        net = wrap(module)
        module.fc1.weight.requires_grad_(False)
        errors = [error_of(net, inputs)]
        net = wrap(module)
        errors.append(error_of(net, inputs))
        module.fc1.weight.requires_grad_(True)
        errors.append(error_of(net, inputs))
        net = wrap(module)
        backward(net, inputs, labels)
        net.finish_gradient_synchronization()
        results[strategy] = *errors, net.traffic.num_bytes
    return results


def test_freezing_and_thawing_raise_until_the_model_is_wrapped_again():
    for results in spawn(change_what_is_trained, 2):
        for frozen, wrapped_again, thawed, num_bytes in results.values():
            assert "frozen or unfrozen" in frozen and "wrap it again" in frozen
            assert "frozen or unfrozen" in thawed
            assert wrapped_again == "nothing"
            assert num_bytes == 4 * 850


def share_a_layer(rank):
    """Map each strategy to the errors of wrapping a model that shares a layer, with its wrapper alive and deleted."""
    results = {}
    for strategy, wrap in STRATEGIES.items():
        shared = nn.Linear(3, 3)
        actor, critic = nn.Sequential(shared, nn.Linear(3, 2)), nn.Sequential(shared, nn.Linear(3, 1))
        net = wrap(actor)
        errors = [error_of(wrap, critic)]
        again = wrap(actor)
        errors.append(error_of(net, torch.ones(1, 3)))
        del net, again
        results[strategy] = *errors, error_of(wrap, critic)
    return results


def test_a_layer_of_two_models_is_in_one_wrapper_alone():
    for results in spawn(share_a_layer, 2):
        for shared, replaced, deleted in results.values():
            assert shared.startswith("ValueError: 0.weight was given, a parameter of a model in ")
            assert replaced.startswith("RuntimeError: the model was wrapped again")
            assert deleted == "nothing"


def train_in_another_dtype(rank):
    """Map each strategy to its gradients of a model whose last layer becomes bfloat16, and to this rank's own."""
    results = {}
    for strategy, wrap in STRATEGIES.items():
        module = seeded(Toy)
        net, alone = wrap(module), seeded(Toy)
        for step in range(3):
            if step == 1:
                for model in (module, alone):
                    model.fc3.to(torch.bfloat16)
            for model in (net, alone):
                model.zero_grad()
                with torch.autocast(torch.get_default_device().type, torch.bfloat16):
                    backward(model, *batch(step, rank, 2))
            net.finish_gradient_synchronization()
        results[strategy] = gradients(module), gradients(alone)
    return results


def test_parameters_whose_dtype_changes_are_averaged_in_it():
    ranks = spawn(train_in_another_dtype, 2)
    for strategy in STRATEGIES:
        expected = mean_gradients([rank[strategy][1] for rank in ranks])
        for rank in ranks:
            for name, gradient in rank[strategy][0].items():
                torch.testing.assert_close(
                    gradient, expected[name], rtol=8e-3 if name.startswith("fc3") else 1e-6, atol=0
                )


def send_sparse(rank):
    """Return each strategy's error for a sparse gradient."""
    results = []
    for wrap in STRATEGIES.values():
        net = wrap(nn.Embedding(4, 3, sparse=True))
        loss = net(torch.tensor([rank])).sum()
        results.append(error_of(lambda loss=loss, net=net: (loss.backward(), net.finish_gradient_synchronization())))
    return results


def test_sparse_gradients_are_refused():
    for results in spawn(send_sparse, 2):
        assert results == ["ValueError: weight has a sparse gradient; allowed: dense gradients"] * len(STRATEGIES)
