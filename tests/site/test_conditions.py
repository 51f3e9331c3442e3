"""The conditions of a page's numbers are named once, whatever the number of sessions."""

import dataclasses

from perf.site.conditions import facts
from tests.site.cases import SESSION, case


def test_ceilings_of_several_sessions_are_one_range() -> None:
    slower = {"matmul_flops_per_s": {"bfloat16": 9.9e11, "float16": 8e11}, "copy_bytes_per_s": 1e9}
    sessions = [SESSION, dataclasses.replace(SESSION, id="t", ceilings=slower), dataclasses.replace(SESSION, id="u")]
    found = dict(facts([case(session=session) for session in sessions]))["Ceilings"]
    assert found == "bfloat16 matmul 990 GFLOP/s to 1.00 TFLOP/s, float16 matmul 800 GFLOP/s, copy 1.00 GB/s"
    near = dataclasses.replace(SESSION, id="t", ceilings={"matmul_flops_per_s": {"bfloat16": 1.02e12}})
    found = dict(facts([case(), case(session=near)]))["Ceilings"]
    assert found == "bfloat16 matmul 1.00 to 1.02 TFLOP/s, copy 1.00 GB/s"
