"""The roofline page's numbers: cases, classes and commits against their ceilings, with values worked out by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from perf.site.newest import NewestCell
from perf.site.roofline import rows
from tests.site.cases import case

COMMIT = "a" * 40


def cell(seconds: float = 1.0, **changes: Any) -> NewestCell:
    """5e11 FLOPs and 1e8 bytes on a device of 1e12 FLOP/s and 1e9 bytes/s: half a second at the ceiling."""
    return NewestCell(case(visits=((seconds,) * 4,) * 3, **changes), COMMIT)


def test_a_row_is_the_least_time_over_the_time_taken() -> None:
    (row,) = rows.rows_of([cell(2.0), cell(status="error", reason="no"), cell(matmul_dtype="float16")])
    assert (row.fraction, row.bound.limit, row.whose) == (0.25, "arithmetic", "ours")
    assert (row.intensity, row.flops_per_s, row.bytes_per_s) == (5000.0, 2.5e11, 5e7)


@pytest.mark.parametrize(
    ("benchmark", "params", "whose"),
    [
        ("attention.FlashAttention", {"impl": "triton"}, "ours"),
        ("attention.FlashAttention", {"impl": "sdpa"}, "peer"),
        ("attention.PyTorchAttention", {"impl": "reference_compiled"}, "ours"),
        ("transformer.Transformer", {"attention": "sdpa"}, "ours"),
        ("data_parallel.DataParallel", {"strategy": "torch_static"}, "peer"),
        ("data_parallel.DataParallel", {"strategy": "bucketed"}, "ours"),
        ("sharded_optimizer.ShardedOptimizer", {"sharding": "torch"}, "peer"),
        ("controls.Controls", {"control": "matmul"}, "control"),
        ("controls.Clocks", {"control": "linears"}, "control"),
        ("smoke.SmokeControls", {"control": "matmul"}, "control"),
        ("removed.LongAgo", {}, "ours"),
    ],
)
def test_whose_code_a_case_runs(benchmark: str, params: dict[str, Any], whose: str) -> None:
    assert rows.whose(SimpleNamespace(benchmark=benchmark, params=params)) == whose  # type: ignore[arg-type]


def test_a_class_speaks_of_ours_and_the_lowest_comes_first() -> None:
    flash = [cell(seconds) for seconds in (1.0, 2.0, 5.0)]  # 0.5, 0.25, 0.1
    peer = NewestCell(case("sdpa", visits=((0.5,) * 4,) * 3), COMMIT)
    step = cell(0.625, benchmark="transformer.Transformer")  # 0.8
    copy = cell(10.0, benchmark="controls.Controls")  # 0.05
    failed = cell(status="error", reason="no", benchmark="attention.Leaderboard")
    classes = rows.classes_of(
        {"controls.Controls": [copy], "transformer.Transformer": [step], "attention.FlashAttention": [*flash, peer]}
        | {"attention.Leaderboard": [failed]}
    )
    assert [(entry.benchmark, entry.median) for entry in classes] == [
        ("attention.FlashAttention", 0.25),
        ("transformer.Transformer", pytest.approx(0.8)),
        ("controls.Controls", 0.05),
    ], "controls last, and no class without a row"
    assert [row.fraction for row in classes[0].ours] == [0.1, 0.25, 0.5]
    assert classes[0].peers_median == 1.0
    assert classes[1].peers_median is None


AXES = {"seq_len": [128, 256, 512], "impl": ["triton", "sdpa"]}
BENCHMARK = {
    "name": "attention.FlashAttention.track_time",
    "params": [[repr(value) for value in values] for values in AXES.values()],
    "param_names": list(AXES),
}


def graph(points: dict[int, list[Any]], **params: str) -> tuple[str, Any]:
    return "", SimpleNamespace(
        benchmark_name=BENCHMARK["name"],
        params={"machine": "m", "torch": "2.11.0", "gpu": ""} | params,
        get_data=lambda: [(revision, values, None) for revision, values in points.items()],
    )


def of_grid(seq_len: int, impl: str = "triton") -> NewestCell:
    result = case(visits=((1.0,) * 4,) * 3)
    result.params.clear()
    result.params.update(seq_len=seq_len, impl=impl)
    return NewestCell(result, COMMIT)


def test_a_history_compares_the_same_cases_at_every_commit() -> None:
    (flash,) = rows.classes_of(
        {"attention.FlashAttention": [of_grid(n, i) for n in (128, 256, 512) for i in AXES["impl"]]}
    )
    # The cells: 128 triton, 128 sdpa, 256 triton, 256 sdpa, 512 triton, 512 sdpa; half a second at the ceiling.
    old = graph(
        {3: [1.0, 9.0, 2.0, 9.0, None, 9.0], 5: [2.0, 9.0, 5.0, 9.0, 0.6, 9.0], 6: [1.0, 9.0, None, 9.0, None, 9.0]}
    )
    new = graph({4: [1.0, None, 1.0, None, None, None]}, torch="2.13.0")
    other = graph({2: [1.0] * 6}, machine="laptop")
    history = rows.history(flash, [old, new, other], BENCHMARK, "m")
    assert history.cases == 1, "128 was measured four times, 256 three times"
    assert history.first == {"seq_len": 128, "impl": "triton"}
    assert [(point.revision, point.fraction) for point in history.points] == [(3, 0.5), (4, 0.5), (5, 0.25), (6, 0.5)]
    assert [dict(point.versions) for point in history.points[:2]] == [{"torch": "2.11.0"}, {"torch": "2.13.0"}]
    with_both = graph({3: [1.0, 9.0, 2.0, 9.0, None, 9.0], 5: [2.0, 9.0, 5.0, 9.0, 0.6, 9.0]})
    history = rows.history(flash, [with_both], BENCHMARK, "m")
    assert [(point.revision, point.fraction) for point in history.points] == [(3, 0.375), (5, 0.175)], "medians of two"


def test_a_commit_that_lacks_one_of_the_cases_is_left_out() -> None:
    (flash,) = rows.classes_of({"attention.FlashAttention": [of_grid(128), of_grid(256)]})
    first, both, last = ([1.0, None, value, None, None, None] for value in (None, 2.0, 2.0))
    last[0] = None
    history = rows.history(flash, [graph({1: first, 2: both, 3: last})], BENCHMARK, "m")
    assert (history.cases, [point.revision for point in history.points]) == (2, [2])


def test_a_history_ends_with_the_newest_commits() -> None:
    (flash,) = rows.classes_of({"attention.FlashAttention": [of_grid(128)]})
    long = graph({revision: [1.0, None, None, None, None, None] for revision in range(100)})
    points = rows.history(flash, [long], BENCHMARK, "m").points
    assert [point.revision for point in points] == list(range(100 - rows.MOST_POINTS, 100))
    assert rows.history(flash, [], BENCHMARK, "m").points == []
