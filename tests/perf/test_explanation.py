"""What is stored beside a number to explain it later."""

import pytest

from perf.harness.explanation import explain
from perf.workloads import build

CASE = {"seq_len": 512, "d": 64, "dtype": "bfloat16", "mode": "forward_backward", "impl": "triton"}


@pytest.mark.gpu
def test_kernels_of_a_call_and_what_the_compiler_made_of_ours():
    work = build("attention", CASE, "cuda")
    work.run()
    found = explain(work)
    names = {name for name, _, _ in found["kernels"]}
    ours = {"flash_fwd_kernel", "flash_bwd_delta_kernel", "flash_bwd_dkdv_kernel", "flash_bwd_dq_kernel"}
    assert ours <= names
    assert all(count == 1 and microseconds > 0 for name, count, microseconds in found["kernels"] if name in ours)
    assert {kernel["name"] for kernel in found["triton_kernels"]} == ours
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
    assert [kernel["name"] for kernel in found] == ["flash_fwd_kernel"]


@pytest.mark.gpu
def test_work_without_a_kernel_of_ours_has_none():
    work = build("attention", CASE | {"impl": "sdpa"}, "cuda")
    work.run()
    found = explain(work)
    assert found["kernels"]
    assert found["triton_kernels"] == []
