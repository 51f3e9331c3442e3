"""Compiling ahead: each problem once, on GPUs alone, and what fails costs no other."""

import os
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from perf.studies import fresh_process
from perf.studies.attention import ahead
from perf.studies.attention.cells import Cell, cells_of
from perf.studies.attention.groups import GROUPS
from perf.studies.attention.study import rows_of


class Pool:
    """A process that is none: it answers at once, and no more after an error."""

    def __init__(self, module, method):
        assert module == ahead.__name__
        self.died = False

    def submit(self, function, asked):
        assert not self.died
        future = Future()
        try:
            future.set_result(function(asked))
        except Exception as error:
            self.died = True
            future.set_exception(error)
        return future

    def shutdown(self, *, cancel_futures):
        pass


@pytest.fixture
def ran(monkeypatch):
    """The arms that were run, in a machine of 8 cores; one of them fails."""
    seen = []

    class Work:
        def __init__(self, *asked):
            self.asked = asked

        def run(self):
            seen.append(self.asked)
            if len(seen) == 2:
                raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

    monkeypatch.setattr(fresh_process, "_pool", Pool)
    monkeypatch.setattr(ahead, "builder", lambda *asked: lambda: Work(*asked))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    return seen


def plan_of(*groups: str) -> dict[Cell, list]:
    cells = cells_of({name: replace(GROUPS[name], **({"count": 5} if name == "random" else {})) for name in groups})
    return {cell: rows_of(cell, GROUPS[cell.group].ours, (), "cuda") for cell in cells}


def test_each_problem_runs_once_in_the_mode_that_needs_most_kernels(ran):
    plan = plan_of("random", "gqa", "float32")
    ahead.compile_ahead(plan, "cuda")
    expected = [(cell, "triton") for cell in plan if cell.mode != "forward"]
    expected += [(cell, "triton_tf32") for cell in plan if cell.group == "float32"]
    assert len(ran) == len(expected) == 5 + 10 + 2 * 2
    assert {(cell, impl) for cell, impl, device in ran if device == "cuda"} == set(expected)


@pytest.mark.parametrize(("device", "cores"), [("cpu", 8), ("cuda", 1)])
def test_nothing_is_compiled_ahead_where_it_gains_nothing(device, cores, ran, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores), raising=False)
    ahead.compile_ahead(plan_of("gqa"), device)
    assert not ran
