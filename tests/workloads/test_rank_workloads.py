"""A step over several ranks as a workload: its arms, and the refusal of a wrong step."""

import contextlib
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cs336_systems import linear_cross_entropy, training
from cs336_systems.distributed import ddp
from cs336_systems.distributed.collectives import Average
from perf.workloads import build, data_parallel, sharded_optimizer
from perf.workloads.workload import WrongResult
from tests.distributed.ranks import spawn
from tests.distributed.steps import counted

COMMON = {"size": "tiny", "context_length": 16, "batch": 4, "precision": "fp32", "variant": "eager"}
PARALLEL = COMMON | {"bucket_size_mb": 0.1, "mode": "exposed"}
OF_STRATEGIES = [("data_parallel", PARALLEL | {"strategy": strategy}) for strategy in data_parallel.STRATEGIES]
OF_SHARDINGS = [("sharded_optimizer", COMMON | {"sharding": sharding}) for sharding in sharded_optimizer.SHARDINGS]


@contextlib.contextmanager
def noted_models(module):
    """Yield a list of the models that a module of workloads builds inside."""
    models, build_model = [], module.build_model
    with patch.object(module, "build_model", lambda *args: models.append(build_model(*args)) or models[-1]):
        yield models


class Compiled(nn.Module):
    """A fake compiled model: the same model, which records its calls."""

    def __init__(self, model, calls):
        super().__init__()
        self.model, self.calls = model, calls

    def forward(self, *inputs):
        self.calls.append(self)
        return self.model(*inputs)


def call_compiled_models(rank):
    """Calls of the compiled model in a step, for each workload."""
    found, calls = [], []
    with patch.object(torch, "compile", lambda one, **_: Compiled(one, calls) if isinstance(one, nn.Module) else one):
        for workload, params in OF_STRATEGIES + OF_SHARDINGS:
            work = build(workload, params | {"variant": "compiled"}, "cpu")
            calls.clear()
            work.run()
            found.append(len(calls))
            work.check()
    return found


def test_a_compiled_model_is_what_runs():
    assert spawn(call_compiled_models, 2) == [[1] * 10] * 2


def check_captured_steps(rank):
    """The errors that the checks found, of every strategy in both modes, where a step is replayed."""
    make_train_step = training.make_train_step

    class Replayed:
        """A fake `training.Captured`: it writes gradients where they were at the capture and binds none."""

        def __init__(self, step):
            step()
            self.step, self.parameters = step, list(models[-1].parameters())
            self.gradients = [parameter.grad for parameter in self.parameters]

        def __call__(self):
            bound = [parameter.grad for parameter in self.parameters]
            self.step()
            for parameter, gradient, before in zip(self.parameters, self.gradients, bound, strict=True):
                gradient.copy_(parameter.grad)
                parameter.grad = before

    with (
        noted_models(data_parallel) as models,
        patch.object(training, "Captured", Replayed),
        patch.object(training, "make_train_step", lambda *args, variant, **kwargs: make_train_step(*args, **kwargs)),
    ):
        works = [
            build(workload, params | {"variant": "cuda_graph", "mode": mode}, "cpu")
            for workload, params in OF_STRATEGIES
            for mode in ("step", "exposed")
        ]
        assert [work.without is None for work in works] == [True, False] * len(OF_STRATEGIES)
        return [work.check() for work in works]


def test_the_checks_look_at_the_gradients_of_the_step_that_was_replayed_last():
    for errors in spawn(check_captured_steps, 2):
        assert len(errors) == 12 and max(errors) < 1e-5


def take_all_arms(rank):
    """Return weights and all-reduces of two steps of each arm, by strategy, on one rank."""
    found = {}
    with noted_models(data_parallel) as models:
        for workload, params in OF_STRATEGIES:
            arms = []
            for mode, arm in (("exposed", "run"), ("exposed", "without"), ("alone", "run")):
                work = build(workload, params | {"mode": mode}, "cpu")
                with counted() as traffic:
                    for _ in range(2):
                        getattr(work, arm)()
                arms.append(([value.detach() for value in models[-1].parameters()], traffic.calls))
            found[params["strategy"]] = arms
    return found


def test_the_arm_without_communication_takes_the_same_step_without_communication():
    (found,) = spawn(take_all_arms, 1)
    for strategy, ((weights, calls), *without) in found.items():
        for weights_without, calls_without in without:
            torch.testing.assert_close(weights_without, weights, rtol=0, atol=0)
            assert calls_without == 0
        assert calls > 0 or strategy.startswith("torch")  # whose calls are not Python's


def batches(rank):
    """Sequences that the model saw in a step of batch 2, and its floor's FLOPs over those of batch 4; per workload."""
    found, seen, make_train_step = [], [], training.make_train_step

    def noted(model, ids, targets, **kwargs):
        seen.append(len(ids))
        return make_train_step(model, ids, targets, **kwargs)

    with patch.object(training, "make_train_step", noted):
        for workload, params in (OF_STRATEGIES[0], OF_SHARDINGS[0]):
            usual, small = build(workload, params, "cpu"), build(workload, params | {"batch": 2}, "cpu")
            found.append((*seen[-2:], small.floor.flops / usual.floor.flops))
    return found


def test_the_batch_of_a_rank_is_four_unless_it_is_another():
    assert spawn(batches, 1) == [[(4, 2, 0.5)] * 2]


def count_all_reduces(rank):
    """Return the all-reduces of a step, which moves all weights, by sharding."""
    found = {}
    for workload, params in OF_SHARDINGS:
        with noted_models(sharded_optimizer) as models:
            work = build(workload, params, "cpu")
        before = [value.detach().clone() for value in models[-1].parameters()]
        with counted() as traffic:
            work.run()
        assert not any(torch.equal(old, new) for old, new in zip(before, models[-1].parameters(), strict=True))
        found[params["sharding"]] = traffic.calls
        for _ in range(4):
            work.run()
        work.check()  # of a first step, whatever has been
    return found


def test_gradients_that_go_to_their_owners_are_not_all_reduced_too():
    assert spawn(count_all_reduces, 2) == [{"none": 1, "sharded": 1, "sharded_reducing": 0, "torch": 1}] * 2


def with_another_rate(make_train_step):
    def make(*args, **kwargs):
        train = make_train_step(*args, **kwargs)
        train.optimizer.param_groups[0]["lr"] *= 1.1
        return train

    return make


def with_a_trace_of_rank_1(make_train_step):
    def make(*args, **kwargs):
        train = make_train_step(*args, **kwargs)
        optimizer_step = train.optimizer_step

        def step():
            optimizer_step()
            if dist.get_rank() == 1:
                with torch.no_grad():
                    next(iter(train.model.parameters())).mul_(1 + 1e-6)

        train.optimizer_step = step
        return train

    return make


def without_a_reduction(_):
    """Skip the reduction, but not the wait: gradients in flight could arrive at any time."""
    return lambda tensors, group: Average((), dist.get_world_size(group))


FAULTS = {
    "another rate": (training, "make_train_step", with_another_rate, "AdamW"),
    "a trace on a rank": (training, "make_train_step", with_a_trace_of_rank_1, "differs between ranks"),
    "no reduction": (ddp, "start_average", without_a_reduction, "differs from"),
}


def reduce_and_check(rank):
    """Return the data that a run sends, before the check and after it; without an all-reduce the check must fail."""
    work, sent, all_reduce = build("collectives", {"megabytes": 1}, "cpu"), [], dist.all_reduce

    def watched(data, *args, **kwargs):
        sent.append((data.nbytes, data.any().item()))
        return all_reduce(data, *args, **kwargs)

    with patch.object(dist, "all_reduce", watched):
        work.run()
        work.check()
        sent.pop()
        work.run()
    with patch.object(dist, "all_reduce", lambda *_: None), pytest.raises(WrongResult, match="is not exact"):
        work.check()
    return sent


def test_an_all_reduce_is_of_zeros_and_a_wrong_one_gets_no_time():
    assert spawn(reduce_and_check, 2) == [[(10**6, False)] * 2] * 2


def check_with_a_fault(rank, fault):
    """Return the errors of the checks of a bucketed and of a sharded step."""
    owner, name, broken, _ = FAULTS[fault]
    found = []
    with patch.object(owner, name, broken(getattr(owner, name))):
        for workload, params in (OF_STRATEGIES[3], OF_SHARDINGS[0 if fault == "another rate" else 1]):
            work = build(workload, params, "cpu")
            try:
                work.check()
                found.append("nothing")
            except WrongResult as error:
                found.append(str(error))
            dist.barrier()
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_step_gets_no_time(fault):
    for errors in zip(*spawn(check_with_a_fault, 2, fault), strict=True):
        assert all(FAULTS[fault][3] in error for error in errors), errors


LEADERBOARD = {"d_model": 32, "d_ff": 48, "num_layers": 3, "num_heads": 2, "vocab_size": 67, "context_length": 16}
LEADERBOARD |= {"batch": 1, "precision": "fp32", "variant": "eager", "attention": "pytorch", "prefetch": 2}


def check_leaderboard_steps(rank):
    """The error of a right step, and those of a gradient and of an update that are wrong."""
    loss, step, found = linear_cross_entropy.linear_cross_entropy, training.TrainStep.optimizer_step, []
    for owner, name, wrong in (
        (linear_cross_entropy, "linear_cross_entropy", loss),
        (
            linear_cross_entropy,
            "linear_cross_entropy",
            lambda x, *rest: loss(x.detach() + 1.01 * (x - x.detach()), *rest),
        ),
        (training.TrainStep, "optimizer_step", lambda train: (step(train), step(train))),
    ):
        with patch.object(owner, name, wrong):
            params = LEADERBOARD | {"checkpoint_every": 2, "world_size": dist.get_world_size()}
            work = build("leaderboard_step", params, "cpu")
            work.run()
            try:
                found.append(work.check())
            except WrongResult as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_leaderboards_step_is_compared_with_float64(world_size):
    for error, gradient, update in spawn(check_leaderboard_steps, world_size):
        assert error < 1e-4
        assert gradient.startswith("the gradient differs")
        assert update.startswith("AdamW's update differs")
