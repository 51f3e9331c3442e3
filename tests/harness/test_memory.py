"""Peak memory is the same bytes whatever ran before, and its largest allocations name their callers."""

import gc
from functools import partial

import pytest
import torch
import torch.utils.checkpoint

from perf.harness.memory import Leftovers, peak_memory, peak_of
from perf.workloads import build
from perf.workloads.workload import Floor, Workload

CASE = {"seq_len": 2048, "d": 64, "dtype": "bfloat16", "mode": "forward_backward", "impl": "reference"}


def entry(action, address, size, *frames):
    frames = [{"filename": name, "line": 1, "name": "f"} for name in frames]
    return {"action": action, "addr": address, "size": size, "frames": frames}


def test_the_largest_allocations_are_those_alive_at_the_peak_of_the_run():
    trace = [
        entry("alloc", 1, 900, "/a/b/build.py"),
        entry("free_requested", 1, 900),
        entry("free_completed", 1, 900),
        entry("alloc", 2, 100, "/x/torch/nn.py", "/a/b/input.py", "/a/b/caller.py", "/a/b/further.py"),
        entry("alloc", 1, 300, "??", "/a/b/run.py"),
        entry("free_completed", 1, 300),
        entry("alloc", 3, 200, "/a/b/run.py"),
    ]
    largest = [[300, "b/run.py:1 f"], [100, "b/input.py:1 f < b/caller.py:1 f"]]
    assert peak_of(trace, first_of_run=4) == (400, largest)


def test_what_an_earlier_call_left_is_no_part_of_the_peak_whenever_it_is_freed():
    run = [entry("alloc", 1, 300, "/a/b/run.py"), entry("alloc", 2, 100, "/a/b/run.py")]
    freed = entry("free_completed", 9, 250)
    for place in range(3):
        assert peak_of([*run[:place], freed, *run[place:]], first_of_run=0)[0] == 400


def test_what_lived_before_the_run_counts_where_the_run_adds_nothing():
    assert peak_of([entry("alloc", 1, 7, "/a/b/build.py")], first_of_run=1) == (7, [[7, "b/build.py:1 f"]])
    assert peak_of([], first_of_run=0) == (0, [])


def peak():
    build("attention", CASE, "cuda").run()
    return peak_memory(lambda: build("attention", CASE, "cuda"), Leftovers())


@pytest.mark.parametrize(("settles", "order"), [(False, "prepare run"), (True, "prepare run prepare run")])
def test_the_peak_is_of_the_last_run_alone(monkeypatch, settles, order):
    """A first step is far below all others: the moments come with its end, when the activations are gone."""
    log, trace = [], []
    monkeypatch.setattr("torch.cuda.memory._record_memory_history", lambda **_: None)
    monkeypatch.setattr("torch.cuda.memory._snapshot", lambda: {"device_traces": [list(trace)]})
    for name in ("synchronize", "memory_allocated", "current_device"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)

    def run():
        log.append("run")
        size = {1: 10, 2: 7}[log.count("run")]
        trace.extend([entry("alloc", 1, size, "/a/b/run.py"), entry("free_completed", 1, size)])

    prepare, outside = partial(log.append, "prepare"), lambda: 100
    made = Workload(run, lambda: 0.0, Floor(), prepare, settles=settles, outside_bytes=outside)
    assert peak_memory(lambda: made, Leftovers())["peak_bytes"] == 100 + (7 if settles else 10)
    assert log == order.split()


@pytest.mark.gpu
def test_peak_memory_is_the_same_bytes_whatever_ran_before():
    first = peak()["peak_bytes"]
    kept = [torch.empty(size, device="cuda") for size in (3, 10_007, 5_000_011)]
    torch.randn(3000, 3000, device="cuda") @ torch.randn(3000, 3000, device="cuda")
    assert peak()["peak_bytes"] == first
    del kept
    assert peak()["peak_bytes"] == first


@pytest.mark.gpu
def test_a_cached_block_counts_as_what_was_asked_for():
    """One of 4.5 MiB between two that live goes out whole for 4 MiB."""
    below, between, above = (torch.empty(size * 2**19, dtype=torch.uint8, device="cuda") for size in (12, 9, 12))
    del between
    made = Workload(run=lambda: torch.empty(2**22, dtype=torch.uint8, device="cuda"), check=lambda: 0.0, floor=Floor())
    found = peak_memory(lambda: made, Leftovers())
    assert found["peak_bytes"] == 2**22
    assert [size for size, _ in found["largest_allocations"]] == [2**22]
    del below, above


@pytest.mark.gpu
def test_the_largest_allocations_add_up_to_most_of_the_peak_and_say_who_asked():
    found = peak()
    total = sum(size for size, _ in found["largest_allocations"])
    assert 0.8 * found["peak_bytes"] <= total <= found["peak_bytes"]
    assert any("attention/reference.py" in where for _, where in found["largest_allocations"])


@pytest.mark.gpu
def test_a_checkpoint_in_compiled_code_can_stop_recomputing():
    """By an exception, during which the allocator is asked for stacks."""
    layer = torch.compile(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3))).cuda())

    def run():
        x = torch.randn(512, 512, device="cuda", requires_grad=True)
        for _ in range(3):
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        x.sum().backward()

    run()
    assert peak_memory(lambda: Workload(run=run, check=lambda: 0.0, floor=Floor()), Leftovers())["peak_bytes"] > 0


@pytest.mark.gpu
def test_a_cycle_that_holds_gpu_memory_is_collected():
    leftovers = Leftovers()
    leftovers.release()
    gc.disable()
    try:
        cycle = [torch.empty(2**26, device="cuda")]
        cycle.append(cycle)
        del cycle
        held = torch.cuda.memory_allocated()
        leftovers.release()
        assert torch.cuda.memory_allocated() < held
    finally:
        gc.enable()
