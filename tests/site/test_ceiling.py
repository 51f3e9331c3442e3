"""The roofline of a case: FLOPs at the best matmul rate, bytes at the best copy rate, whichever takes longer."""

import dataclasses
from typing import Any

import pytest

from perf.site.ceiling import attained, bound_of, intensity, rate
from tests.site.cases import SESSION, case

L2 = dataclasses.replace(SESSION, device={"name": "GPU", "l2_bytes": 2e8})


@pytest.mark.parametrize(
    ("changes", "expected", "limit"),
    [
        ({}, 0.5, "arithmetic"),  # 5e11 at 1e12 a second
        ({"min_bytes": 8e8}, 0.8, "memory"),  # 8e8 at 1e9 a second
        ({"min_bytes": 8e8, "cache": "warm"}, 0.5, "arithmetic"),  # a warm operand does not come from memory
        ({"min_bytes": 8e8, "cache": "warm", "session": L2}, 0.6, "memory"),  # but for what L2 cannot hold
        ({"min_bytes": 8e8, "flops": 0.0, "matmul_dtype": ""}, 0.8, "memory"),  # a copy
    ],
)
def test_the_ceiling_is_the_roofline(changes: dict[str, Any], expected: float, limit: str) -> None:
    found = bound_of(case(**changes))
    assert found is not None
    assert (found.seconds, found.limit) == (pytest.approx(expected), limit)
    assert attained(case(**changes), 2.0) == pytest.approx(expected / 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"matmul_dtype": "float16"},  # whose rate nobody measured
        {"session": dataclasses.replace(SESSION, ceilings={})},
        {"clock": "first_call"},  # mostly compiles
        {"params": {"mode": "exposed"}},  # a difference of two times
        {"flops": 0.0, "min_bytes": 0.0},
        {"flops": 0.0, "cache": "warm"},  # nothing is known of what a CPU's caches hold
    ],
)
def test_without_a_bound_there_is_no_ceiling(changes: dict[str, Any]) -> None:
    assert bound_of(case(**changes)) is None
    assert attained(case(**changes), 1.0) is None


def test_rate_and_intensity() -> None:
    assert rate(case(), 0.5) == 1e12
    assert rate(case(clock="first_call"), 0.5) is None
    assert intensity(case()) == 5000.0
    assert intensity(case(flops=0.0)) is None
    assert intensity(case(min_bytes=0.0)) is None
