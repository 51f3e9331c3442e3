"""Private names of torch that are gone or changed cost data parallelism and the optimizers only speed."""

import contextlib
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # imported first, because it looks up the names that the tests remove
import torch.distributed as dist
from torch import nn

from cs336_systems import private
from cs336_systems.distributed.collectives import run_together
from cs336_systems.distributed.process_group import from_all_ranks, new_group_like
from cs336_systems.distributed.process_group import spawn as spawn_plainly
from cs336_systems.optimizer.master_weights import MasterWeightAdamW
from tests.distributed.everything import check_everything, train_everything
from tests.distributed.ranks import ON_GPUS, counts_coalesced_calls, on_a_gpu, spawn, spawn_processes

FOREACH = ("_foreach_div_", "_foreach_copy_", "_foreach_add_")


@pytest.fixture(autouse=True)
def forget_what_is_unavailable(monkeypatch):
    monkeypatch.setattr(private, "unavailable", set())


@contextlib.contextmanager
def missing(owner, name, how):
    """Remove `name` from `owner`, or make it take other arguments."""
    before = getattr(owner, name)
    delattr(owner, name)
    if how == "changed":

        def changed(*args, **kwargs):
            raise TypeError(f"{name}() got an unexpected argument")

        setattr(owner, name, changed)
    try:
        yield
    finally:
        setattr(owner, name, before)


def divide(tensors):
    private.divide_each(tensors, 4)


def divide_by_a_tensor(tensors):
    private.divide_each(tensors, torch.tensor(4.0))


def copy(tensors):
    private.copy_each(tensors, [torch.full_like(tensor, 0.5) for tensor in tensors])


def add(tensors):
    private.add_to_each(tensors, 1)


@pytest.mark.parametrize("how", ["gone", "changed"])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("_foreach_div_", divide),
        ("_foreach_div_", divide_by_a_tensor),
        ("_foreach_copy_", copy),
        ("_foreach_add_", add),
    ],
)
def test_without_it_each_tensor_has_its_own_launch_and_there_is_one_warning(name, call, how):
    fast, plain = ([torch.arange(3.0), torch.ones(2, 2)] for _ in range(2))
    call(fast)
    call(fast)
    with missing(torch, name, how):
        with pytest.warns(UserWarning, match=name):
            call(plain)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(plain)
    torch.testing.assert_close(plain, fast, rtol=0, atol=0)
    call([])


MANY = [
    f"{name}_coalesced"
    for name in ("all_gather_single", "allgather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor")
    if hasattr(dist.ProcessGroup, f"{name}_coalesced")
]
"""Collectives of many tensors, by their names since torch 2.13 and before."""


def gather_and_scatter(rank, how):
    """Return two gathered tensors, this rank's shares of two sums, and what was given up."""
    wholes = [torch.zeros(4, 2), torch.zeros(2, 3)]
    shares = [(whole, whole.chunk(2)[rank].fill_(rank + 1)) for whole in wholes]
    terms = [(torch.arange(8.0).view(4, 2) * (rank + 1), torch.zeros(2, 2)), (torch.ones(2, 1), torch.zeros(1, 1))]
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore" if how else "error")
        for name in MANY if how else []:
            stack.enter_context(missing(dist.ProcessGroup, name, how))
        works = private.all_gather_coalesced(shares, None)
        works += private.reduce_scatter_coalesced(terms, dist.ReduceOp.SUM, None)
        for work in works:
            work.wait()
    return [whole[:, 0].tolist() for whole in wholes], [mine.flatten().tolist() for _, mine in terms], len(works)


@counts_coalesced_calls
@pytest.mark.parametrize("how", [None, "gone", "changed"])
def test_many_tensors_are_gathered_and_reduced_in_one_call_or_one_by_one(how):
    for rank, (gathered, reduced, calls) in enumerate(spawn_processes(gather_and_scatter, 2, how)):
        assert gathered == [[1, 1, 2, 2], [1, 2]]
        assert reduced == [[[0, 3, 6, 9], [12, 15, 18, 21]][rank], [2]]
        assert calls == (4 if how else 2)


def create_a_group(rank, how):
    """Return the ranks of another group like one of some, of which the ranks are in equally many."""
    group = dist.new_group([1, 2])
    if not rank:
        return []
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings() if how is None else pytest.warns(match="_new_process_group"))
        warnings.simplefilter("always" if how else "error")
        if how:
            stack.enter_context(missing(dist, "distributed_c10d", how))
        other = new_group_like(group, torch.device("cpu"), "gloo")
    assert other is not group
    return from_all_ranks(rank, other)


@pytest.mark.parametrize("how", [None, "gone", "changed"])
def test_some_ranks_have_another_group_by_themselves(how):
    assert spawn_processes(create_a_group, 3, how) == [[], [1, 2], [1, 2]]


def train_without(rank, world_size, how):
    """Train everything with all of the names missing; return the weights, the names warned of, and those given up."""
    with contextlib.ExitStack() as stack, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in FOREACH:
            stack.enter_context(missing(torch, name, how))
        for name in ("allreduce_coalesced", "_start_coalescing", "_end_coalescing"):
            stack.enter_context(missing(dist.ProcessGroup, name, how))
        trained = train_everything(rank, world_size)
    names = [str(warning.message).split()[0] for warning in caught]
    return trained, sorted(name for name in names if name in private.unavailable), sorted(private.unavailable)


@counts_coalesced_calls
@pytest.mark.skipif(ON_GPUS, reason="torch's own optimizers need these names on a GPU")
@pytest.mark.parametrize("how", ["gone", "changed"])
def test_training_without_all_of_them_warns_of_each_once_and_is_right(how):
    expected = ["ProcessGroup.allreduce_coalesced", *(f"torch.{name}" for name in sorted(FOREACH))]
    for trained, warned_of, unavailable in spawn_processes(train_without, 2, 2, how):
        check_everything(trained)
        assert warned_of == unavailable == expected


def train_and_look(rank, world_size):
    check_everything(train_everything(rank, world_size))
    return private.unavailable


def test_the_installed_torch_has_all_of_them():
    assert spawn(train_and_look, 2, 2) == [set()] * 2


@pytest.mark.gpu
def test_the_installed_torch_launches_together_with_nccl():
    assert spawn_plainly(on_a_gpu, 1, train_and_look, 1, backend="nccl") == [set()]


class Group(SimpleNamespace):
    """Process group that logs its calls."""

    def __init__(self):
        super().__init__(log=[])
        self._start_coalescing = lambda device: self.log.append("start")
        self._end_coalescing = lambda device: self.log.append("end") or "all"

    def collective(self):
        self.log.append("collective")
        return "one"


def start_two(group):
    return private.start_together(lambda: [group.collective(), group.collective()], group, torch.device("cpu"))


def test_collectives_are_launched_together_and_waited_for_as_one():
    group = Group()
    assert start_two(group) == ["all"]
    assert group.log == ["start", "collective", "collective", "end"]


def refuse(device):
    raise RuntimeError("Backend does not implement startCoalescing")


def change(device):
    raise TypeError("_start_coalescing() got an unexpected argument")


@pytest.mark.parametrize(
    "missing_from",
    [
        lambda group: delattr(group, "_start_coalescing"),
        lambda group: delattr(group, "_end_coalescing"),
        lambda group: setattr(group, "_start_coalescing", refuse),
        lambda group: setattr(group, "_start_coalescing", change),
    ],
    ids=["start is gone", "end is gone", "refused", "changed"],
)
def test_without_coalescing_each_collective_is_launched_and_waited_for_by_itself(missing_from):
    group = Group()
    missing_from(group)
    with pytest.warns(UserWarning, match="ProcessGroup._start_coalescing"):
        assert start_two(group) == ["one", "one"]
    assert start_two(group) == ["one", "one"]
    assert group.log == ["collective"] * 4


def test_an_error_between_collectives_does_not_hold_back_those_after_it():
    group = Group()

    def fail():
        raise ValueError("no such tensor")

    with pytest.raises(ValueError, match="no such tensor"):
        private.start_together(fail, group, torch.device("cpu"))
    assert group.log == ["start", "end"]
    assert start_two(group) == ["all"]


def fail_once(rank):
    """Raise in the second of three collectives; then make the same call again, and an all-reduce."""
    tensors, broadcast = [torch.full((2,), float(rank)) for _ in range(3)], dist.broadcast

    def failing(tensor, *args, **kwargs):
        if tensor is tensors[1]:
            raise ValueError("in the middle")
        return broadcast(tensor, *args, **kwargs)

    with pytest.raises(ValueError, match="in the middle"):
        run_together(failing, [(tensor, 1) for tensor in tensors], None)
    run_together(broadcast, [(tensor, 1) for tensor in tensors], None)
    total = torch.ones(1)
    dist.all_reduce(total)
    return [tensor.tolist() for tensor in tensors], total.item()


def test_the_call_after_an_error_in_the_middle_is_right():
    assert spawn(fail_once, 2) == [([[1.0, 1.0]] * 3, 2.0)] * 2


def test_without_callbacks_of_the_backward_they_are_called_at_once(monkeypatch):
    def call(gradient):
        called.append(private.is_in_backward())
        private.after_backward(lambda: called.append("callback"))
        called.append("hook")

    x, called = torch.ones(1, requires_grad=True), []
    x.register_hook(call)
    x.sum().backward()
    assert called == [True, "hook", "callback"] and not private.is_in_backward()
    called.clear()
    engine = SimpleNamespace(run_backward=torch.autograd.Variable._execution_engine.run_backward)
    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", engine)
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    with pytest.warns(UserWarning, match="queue_callback|_current_graph_task_id"):
        x.sum().backward()
    assert called == [True, "callback", "hook"]


def test_without_versions_no_change_is_seen():
    tensor = torch.zeros(2)
    assert private.version(tensor.add_(1)) > private.version(torch.zeros(2))
    with pytest.warns(UserWarning, match="Tensor._version"):
        assert private.version(SimpleNamespace()) == 0
    assert private.version(tensor) == 0


def test_a_parameter_without_elements_takes_a_step():
    weights = [nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(2))]
    optimizer = MasterWeightAdamW(weights, lr=0.1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weights[0].shape == (0, 3) and (weights[1] < 1).all()
