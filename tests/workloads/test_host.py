"""Launches of attention and of a step, and the compilations of a step."""

import pytest
import torch

from perf.workloads import build, compiled_step, host
from perf.workloads.workload import Floor

ATTENTION = {"seq_len": 16, "d": 16, "dtype": "float32", "mode": "forward_backward", "impl": "reference"}
STEP = {
    "size": "tiny",
    "context_length": 16,
    "precision": "fp32",
    "variant": "eager",
    "attention": "reference",
    "mode": "step",
}


@pytest.mark.parametrize("params", [ATTENTION, STEP])
def test_the_host_is_held_to_launches_of_checked_work(params):
    work = build("host", params, "cpu")
    work.prepare()
    work.run()
    assert 0 <= work.check() < 1e-3
    assert work.floor == Floor(launches=host.LAUNCHES[params["mode"]])


def test_graphs_breaks_and_recompilations_are_counted_from_the_build_on():
    def of_two_graphs(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    compiled_step.forget_compilations()
    compiled = torch.compile(of_two_graphs, backend="eager", dynamic=False)
    compiled(torch.ones(2))
    assert compiled_step.compilations() == {"graphs": 2, "graph_breaks": 1, "recompiles": 0}
    compiled(torch.ones(3))
    assert compiled_step.compilations() == {"graphs": 4, "graph_breaks": 2, "recompiles": 2}
    work = build("compiled_step", STEP, "cpu")
    work.run()
    assert work.facts() == {"graphs": 0, "graph_breaks": 0, "recompiles": 0}
