"""The kernels that are stored beside a number to explain it later."""

import pytest

from perf.harness.explanation import explain
from perf.workloads import build

CASE = {"seq_len": 512, "d": 64, "dtype": "bfloat16", "mode": "forward_backward", "impl": "triton"}


@pytest.mark.gpu
def test_kernels_of_a_call_and_what_the_compiler_made_of_ours():
    work = build("attention", CASE, "cuda")
    work.run()
    found = explain(work)
    ours = {kernel["name"] for kernel in found["triton_kernels"]}
    assert {name.split("_")[1] for name in ours} == {"fwd", "bwd"}
    counts = {name: count for name, count, microseconds in found["kernels"] if microseconds > 0}
    assert {name: counts.get(name) for name in ours} == dict.fromkeys(ours, 1)
    for kernel in found["triton_kernels"]:
        assert kernel["registers"] > 0
        assert kernel["spills"] >= 0
        assert len(kernel["sass"]) == 16


@pytest.mark.gpu
def test_kernels_that_other_cases_compiled_are_not_this_ones():
    build("attention", CASE, "cuda").run()
    forward = build("attention", CASE | {"mode": "forward"}, "cuda")
    forward.run()
    found = explain(forward)["triton_kernels"]
    assert {kernel["name"].split("_")[1] for kernel in found} == {"fwd"}


@pytest.mark.gpu
def test_work_without_a_kernel_of_ours_has_none():
    work = build("attention", CASE | {"impl": "sdpa"}, "cuda")
    work.run()
    found = explain(work)
    assert found["kernels"]
    assert found["triton_kernels"] == []
