"""Data parallelism and both optimizers on backends that have only torch's plain collectives."""

from unittest.mock import patch

import pytest
import torch
from torch import nn

from cs336_systems.distributed.collectives import Average, FastCalls, fast_calls, start_average_of_rows
from cs336_systems.distributed.process_group import spawn as spawn_plainly
from cs336_systems.distributed.sharded_optimizer import ShardedOptimizer
from tests.distributed.backends import FAKE, LIKE_GLOO_ON_CUDA
from tests.distributed.everything import check_everything, train_everything
from tests.distributed.models import Toy
from tests.distributed.ranks import ON_GPUS, on_a_gpu, spawn
from tests.distributed.steps import STRATEGIES, backward, batch, gradients, mean_gradients, seeded, train, values


@pytest.mark.parametrize("world_size", [1, 3])
def test_all_of_it_trains_where_nothing_is_coalesced_or_averaged(world_size):
    for trained in spawn(train_everything, world_size, world_size, backend=LIKE_GLOO_ON_CUDA):
        check_everything(trained)


@pytest.mark.gpu
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_of_it_trains_with_gloo_on_ranks_that_share_a_gpu(world_size):
    for trained in spawn_plainly(on_a_gpu, world_size, train_everything, world_size, backend="gloo"):
        check_everything(trained)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_all_of_it_trains_with_nccl_on_one_gpu(backend):
    check_everything(spawn_plainly(on_a_gpu, 1, train_everything, 1, backend=backend)[0])


class OnTwoDevices(nn.Module):
    """Model with its first layer on the GPU and its second on the CPU."""

    def __init__(self):
        super().__init__()
        with torch.device("cpu"):
            self.fc1, self.fc2 = nn.Linear(10, 8).cuda(), nn.Linear(8, 5)

    def forward(self, x):
        return self.fc2(self.fc1(x).cpu()).to(x.device)


def train_on_two_devices(rank, world_size):
    results = []
    for wrap in (None, *STRATEGIES.values()):
        torch.manual_seed(0)
        net = OnTwoDevices()
        results.append(train(net, steps=3) if wrap is None else train(wrap(net), rank, world_size, steps=3))
    return results


@pytest.mark.gpu
@pytest.mark.parametrize(("backend", "world_size"), [("cpu:gloo,cuda:nccl", 1), ("gloo", 2)])
def test_parameters_on_two_devices_have_each_its_backend(backend, world_size):
    for alone, *results in spawn_plainly(on_a_gpu, world_size, train_on_two_devices, world_size, backend=backend):
        for trained in results:
            torch.testing.assert_close(trained, alone, rtol=1e-5, atol=1e-6)


def train_without_others(rank):
    for wrap in STRATEGIES.values():
        train(wrap(seeded(Toy)), steps=2)
    net = seeded(Toy)
    sharded = ShardedOptimizer(net.parameters(), torch.optim.SGD, reduces_gradients=True, lr=0.1)
    backward(net, *batch(0))
    sharded.step()
    return True


def test_a_backend_that_sends_nothing_is_no_error():
    assert spawn_plainly(train_without_others, 2, backend=FAKE) == [True, True]


GLOO_ON_CPU = FastCalls(False, True, False, True, True, True)


def fast_calls_of(rank):
    return [fast_calls(None, torch.device(device)) for device in ("cpu", "cuda", "meta")]


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("gloo", [GLOO_ON_CPU, FastCalls(), FastCalls()]),
        ("cpu:gloo,cuda:gloo", [GLOO_ON_CPU, FastCalls(), FastCalls()]),
        (f"cpu:gloo,cuda:{LIKE_GLOO_ON_CUDA}", [GLOO_ON_CPU, FastCalls(), FastCalls()]),
        (FAKE, [FastCalls(), FastCalls(), FastCalls()]),
    ],
)
def test_a_backend_is_asked_for_what_it_has_for_the_device(backend, expected):
    assert spawn_plainly(fast_calls_of, 1, backend=backend) == [expected]


CASES = {
    "narrower": (torch.bfloat16, torch.float32),
    "much wider": (torch.float64, torch.float32),
    "much narrower": (torch.float16, torch.float64),
    "the same": (torch.float32, torch.float32),
    "halves": (torch.float16, torch.float16),
    "wider": (torch.float32, torch.bfloat16),
    "of another range": (torch.float16, torch.bfloat16),
}


def average_rows(rank, world_size):
    """Map each case to this rank's averaged rows of two tensors, the exact ones, and the bytes per element."""
    results = {}
    for name, (own, dtype) in CASES.items():
        everyone = [[drawn(number, rows).to(own) for rows in (5, 2)] for number in range(world_size)]
        everyone[rank][0] = everyone[rank][0].T.contiguous().T  # not contiguous
        average = start_average_of_rows(everyone[rank], dtype, None)
        rows = average.wait()
        exact = [sum(each.double() for each in every) / world_size for every in zip(*everyone, strict=True)]
        mine = []
        for found, whole in zip(rows, exact, strict=True):
            share = -(-len(whole) // world_size)
            assert found.dtype == dtype and len(found) == share
            expected = whole[rank * share : (rank + 1) * share]
            assert not found[len(expected) :].any(), "padding"
            mine.append((found[: len(expected)].double(), expected))
        padded = sum(-(-len(whole) // world_size) * world_size for whole in exact) * 3
        results[name] = mine, average.num_bytes / padded
    return results


def drawn(number, rows):
    """Return rows of a rank, some of which overflow as float16 when they are added."""
    values = torch.rand(rows, 3, generator=torch.Generator("cpu").manual_seed(number), device="cpu")
    return values.mul(60_000).to(torch.get_default_device())


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("backend", ["gloo", LIKE_GLOO_ON_CUDA])
def test_rows_are_sent_in_their_own_dtype_or_a_wider_one_and_averaged_in_that_asked_for(world_size, backend):
    for results in spawn(average_rows, world_size, world_size, backend=backend):
        for name, (mine, sent) in results.items():
            own, dtype = CASES[name]
            tolerance = {torch.float64: 1e-15, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
            if "wider" in name:  # summed in its own dtype, and rounded once
                tolerance = 0.501 * torch.finfo(dtype).eps
            for found, expected in mine:
                torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
            wide = torch.promote_types(own, dtype)
            is_exchange = backend == "gloo" and not ON_GPUS and own.itemsize < wide.itemsize
            assert sent == (own if is_exchange else wide).itemsize


def train_nothing(rank, world_size):
    for wrap in STRATEGIES.values():
        net = wrap(seeded(Toy, rank).requires_grad_(False))
        for _ in range(2):
            net(batch(0)[0])
            net.finish_gradient_synchronization()
        torch.testing.assert_close(values(net), values(seeded(Toy)), rtol=0, atol=0)
    for reduces_gradients in (False, True):
        net = seeded(Toy).requires_grad_(False)
        sharded = ShardedOptimizer(net.parameters(), torch.optim.SGD, reduces_gradients=reduces_gradients, lr=0.1)
        sharded.step()
        assert sharded.clip_grad_norm_(1.0) == 0
        sharded.step()
        sharded.consolidate_state_dict()
        torch.testing.assert_close(values(net), values(seeded(Toy)), rtol=0, atol=0)
    return True


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_model_of_which_nothing_trains_is_left_as_rank_0_has_it(world_size):
    assert all(spawn(train_nothing, world_size, world_size, backend=LIKE_GLOO_ON_CUDA))


def average_large_halves(rank, world_size):
    """Average float16 gradients whose sum is infinite, with each strategy and the reducing optimizer."""
    results = []
    for wrap in STRATEGIES.values():
        net = wrap(nn.Linear(4, 2, bias=False, dtype=torch.float16))
        net(torch.full((1, 4), 40_000.0, dtype=torch.float16)).sum().backward()
        net.finish_gradient_synchronization()
        results.append(net.module.weight.grad)
    weights = [nn.Parameter(torch.zeros(2, 4, dtype=torch.float16)) for _ in range(world_size)]
    sharded = ShardedOptimizer(weights, torch.optim.SGD, reduces_gradients=True, lr=1.0)
    for weight in weights:
        weight.grad = torch.full_like(weight, 40_000.0)
    sharded.step()
    return results + [-weight.detach() for weight in weights]


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_float16_average_is_finite_where_the_sum_is_not(world_size):
    for results in spawn(average_large_halves, world_size, world_size):
        for average in results:
            torch.testing.assert_close(average, torch.full_like(average, 40_000.0), rtol=2**-10, atol=0)


def interrupt_a_wait(rank, world_size):
    """Return the rank's gradients, and each strategy's averages after an interrupted wait and a second finish."""
    module = seeded(Toy)
    backward(module, *batch(0, rank, world_size))
    results, wait = [], Average.wait
    for wrap in STRATEGIES.values():
        net, waits = wrap(seeded(Toy)), []

        def interrupted(average, waits=waits):
            wait(average)
            waits.append(1)
            if len(waits) == min(2, len(net.buckets)):  # noqa: B023, called before the next strategy
                raise KeyboardInterrupt

        backward(net, *batch(0, rank, world_size))
        with patch.object(Average, "wait", interrupted), pytest.raises(KeyboardInterrupt):
            net.finish_gradient_synchronization()
        net.finish_gradient_synchronization()
        results.append(gradients(net))
    return gradients(module), results


def test_a_synchronization_that_was_interrupted_is_finished_by_the_next_call():
    ranks = spawn(interrupt_a_wait, 2, 2)
    expected = mean_gradients([own for own, _ in ranks])
    for _, results in ranks:
        for averaged in results:
            torch.testing.assert_close(averaged, expected)
