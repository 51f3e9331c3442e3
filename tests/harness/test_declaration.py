"""A benchmark class that would measure something else than it says is refused."""

import pytest
import torch

from perf.benchmarks.smoke import SmokeAttention
from perf.harness.declaration import problem_of_class


@pytest.mark.parametrize(("named", "problem"), [("seq_len", ""), ("sequence", "'sequence'; allowed for its workload:")])
def test_an_axis_that_the_workload_does_not_read_is_named(named: str, problem: str) -> None:
    names = tuple(named if name == "seq_len" else name for name in SmokeAttention.param_names)
    cls = type("Mine", (SmokeAttention,), {"param_names": names, "setup_cache": SmokeAttention.setup_cache})
    found = problem_of_class(cls)
    assert problem in found and bool(found) == bool(problem)


@pytest.mark.parametrize(
    "axis",
    [[], [16, 16], [16, "16", 16], [torch.float32], [slice(3)], [(1, 2)], [b"x"], [1j], [float("nan")], [0, False]],
    ids=str,
)
def test_an_axis_has_values_of_json_and_no_two_equal(axis: list[object]) -> None:
    grid = {"params": (axis, *SmokeAttention.params[1:]), "setup_cache": SmokeAttention.setup_cache}
    assert "no two equal" in problem_of_class(type("Mine", (SmokeAttention,), grid))


def test_a_workload_whose_axes_nobody_listed_is_refused_with_the_file_to_list_them_in() -> None:
    """It would measure a case of an axis that it does not read under the name of another."""
    own = {"workload": "foreign_model", "setup_cache": SmokeAttention.setup_cache}
    assert "'foreign_model'; allowed: a module of perf/workloads whose axes are in its axes.py" in problem_of_class(
        type("Mine", (SmokeAttention,), own)
    )
