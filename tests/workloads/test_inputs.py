"""Inputs are the same whatever the measured code has made torch's default dtype: an oracle serves both commits."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from perf.workloads import attention_problem, controls, linear_cross_entropy, transformer_oracle
from perf.workloads.attention_problem import AttentionProblem

INPUTS: dict[str, Callable[[], Iterable[Any]]] = {
    "attention": lambda: attention_problem.inputs(AttentionProblem((1,), 8, 4, "float32", True), "cpu"),
    "attention to the ends": lambda: attention_problem.inputs(
        AttentionProblem((1,), 8, 4, "float32", True, keys="ends"), "cpu"
    ),
    "loss": lambda: linear_cross_entropy.inputs(8, 4, 16, "float32", "cpu"),
    "weights": lambda: [transformer_oracle._noise("weights", "x", (8, 4), "cpu")],
    "linears": lambda: controls.linears(2, 4, 8, "float32", "cpu").run(),
}


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("of", INPUTS)
def test_inputs_do_not_depend_on_the_default_dtype(of: str, default: torch.dtype) -> None:
    expected = list(INPUTS[of]())
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = list(INPUTS[of]())
    finally:
        torch.set_default_dtype(before)
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
