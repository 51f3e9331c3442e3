"""The conditions of a page's numbers are named once, whatever the number of sessions."""

import dataclasses

from perf.site.conditions import facts
from tests.site.cases import SESSION, case


def test_the_starts_of_several_sessions_are_one_range() -> None:
    days = [3, 1, 2]
    sessions = [dataclasses.replace(SESSION, id=str(day), started_at=f"2026-01-0{day}T03:04:05+00:00") for day in days]
    assert (
        dict(facts([case(session=one) for one in sessions]))["Measured"] == "2026-01-01 03:04 to 2026-01-03 03:04 UTC"
    )
    assert dict(facts([case(session=sessions[0])]))["Measured"] == "2026-01-03 03:04 UTC"


def test_ceilings_of_several_sessions_are_one_range() -> None:
    slower = {"matmul_flops_per_s": {"bfloat16": 9.9e11, "float16": 8e11}, "copy_bytes_per_s": 1e9}
    sessions = [SESSION, dataclasses.replace(SESSION, id="t", ceilings=slower), dataclasses.replace(SESSION, id="u")]
    found = dict(facts([case(session=session) for session in sessions]))["Ceilings"]
    assert found == "bfloat16 matmul 990 GFLOP/s to 1.00 TFLOP/s, float16 matmul 800 GFLOP/s, copy 1.00 GB/s"
    near = dataclasses.replace(SESSION, id="t", ceilings={"matmul_flops_per_s": {"bfloat16": 1.02e12}})
    found = dict(facts([case(), case(session=near)]))["Ceilings"]
    assert found == "bfloat16 matmul 1.00 to 1.02 TFLOP/s, copy 1.00 GB/s"
