"""The numbers of the page about several ranks, from made-up records whose values follow the closed forms."""

import math
from pathlib import Path
from typing import Any

import pytest

from perf.site.distributed import rows
from perf.site.distributed.rows import COLLECTIVES, FULLY_SHARDED, SHARDING, STRATEGIES, SWEEPS
from perf.site.newest import NewestCell, cells_of, read_commit
from tests.site import steps
from tests.site.distributed import made_up as parallel
from tests.site.synthetic import H200

GIB = 2**30


def cells(directory: Path, cases: list[dict[str, Any]]) -> dict[str, list[NewestCell]]:
    steps.write_records(directory, cases)
    return cells_of([(steps.COMMIT.hash, read_commit(directory, H200, steps.COMMIT.hash))])


def test_a_strategy_is_a_step_and_what_of_it_nothing_hides(tmp_path: Path) -> None:
    two, four = rows.groups_of(cells(tmp_path, parallel.strategies())[STRATEGIES[0]])
    assert two.where == ("xl", 1024, 16, "bf16", "compiled_blocks", 2)
    assert [strategy.name for strategy in two.strategies] == ["naive", "flat", "overlapped", "bucketed", "torch"]
    naive, torch = two.strategies[0], two.strategies[-1]
    assert naive.step is not None and naive.exposed is not None
    assert (naive.step.median, naive.exposed.median) == (pytest.approx(0.13), pytest.approx(0.026))
    assert naive.share == pytest.approx(0.2)
    assert (naive.fact("calls"), naive.fact("bytes"), naive.peak_bytes) == (435, 8e9, 40 * GIB)
    assert naive.bucket_bytes == pytest.approx(8e9 / 435)
    half = 4.302653 * 1e-4 / 3**0.5
    assert naive.exposed.high - naive.exposed.median == pytest.approx(half)
    assert torch.exposed is not None
    assert torch.exposed.median == pytest.approx(-5e-4), "noise may be larger than what is asked about"
    assert torch.exposed.low == pytest.approx(-5e-4 - half)
    assert (torch.fact("calls"), torch.bucket_bytes) == (None, None)
    assert two.fastest is two.strategies[3]
    assert two.baseline is not None and two.baseline.median == pytest.approx(0.1071)
    assert four.where.world_size == 4
    assert four.fastest is None and four.baseline is None and four.strategies[0].peak_bytes is None


def test_a_share_is_of_numbers_that_were_measured_together(tmp_path: Path) -> None:
    steps.write_records(tmp_path, [parallel.strategy("naive", "step", 130.0)], "a" * 40)
    steps.write_records(tmp_path, [parallel.strategy("naive", mode, 26.0) for mode in ("step", "exposed")], "b" * 40)
    (group,) = rows.groups_of(
        cells_of((commit * 40, read_commit(tmp_path, H200, commit * 40)) for commit in "ab")[STRATEGIES[0]]
    )
    (naive,) = group.strategies
    assert naive.step is not None and naive.exposed is not None
    assert (naive.step.median, naive.exposed.median) == (pytest.approx(0.13), pytest.approx(0.026))
    assert (naive.commits, naive.share) == (["a" * 40, "b" * 40], None)


def test_the_model_is_fitted_to_ours_and_finds_its_optimum(tmp_path: Path) -> None:
    (sweep,) = rows.groups_of(cells(tmp_path, parallel.sweep())[SWEEPS[0]])
    model = rows.model_of(sweep)
    assert model is not None
    assert (model.bandwidth, model.overhead) == (pytest.approx(200e9, rel=1e-3), pytest.approx(20e-6, rel=1e-3))
    assert model.best_bucket_bytes == pytest.approx(math.sqrt(8e9 * 200e9 * 20e-6), rel=1e-3)
    assert model.exposed(8e9 / 80) == pytest.approx(2.1e-3, rel=1e-3)
    few = rows.Group(sweep.where, sweep.strategies[:4])
    assert rows.model_of(few) is None, "two sizes of ours"
    for bandwidth, overhead in ((math.inf, 2e-5), (2e11, 0.0), (2e11, 1.0)):
        assert rows.Model(8e9, bandwidth, overhead, model.measured).best_bucket_bytes is None


def test_an_all_reduce_has_both_bandwidths(tmp_path: Path) -> None:
    cases = [*parallel.collectives(), *parallel.collectives("smoke.SmokeCollectives")[:1]]
    collectives = rows.collectives_of(cells(tmp_path, cases))
    assert [(collective.backend, collective.world_size, collective.megabytes) for collective in collectives] == [
        ("NCCL", 2, 1),
        ("NCCL", 2, 1000),
        ("NCCL", 4, 1),
        ("NCCL", 4, 1000),
        ("gloo", 2, 1),
    ]
    two, four = collectives[1], collectives[3]
    assert (two.algorithm_bandwidth, two.bus_bandwidth) == (pytest.approx(100e9), pytest.approx(100e9))
    assert (four.algorithm_bandwidth, four.bus_bandwidth) == (pytest.approx(50e9), pytest.approx(75e9))
    assert set(COLLECTIVES.values()) == {"NCCL", "gloo"}


def test_memory_is_held_against_the_closed_form_at_three_points(tmp_path: Path) -> None:
    (group,) = rows.shards_of(cells(tmp_path, parallel.sharding())[SHARDING[0]])
    by_name = {shard.name: shard for shard in group}
    parameters = 1_998_235_200
    for name, states, moments in (("none", 16, 8), ("sharded", 12, 4), ("sharded_reducing", 12, 4), ("torch", 12, 4)):
        shard = by_name[name]
        assert shard.predicted("after_init_bytes") == 4 * parameters
        assert shard.predicted("before_step_bytes") == shard.predicted("after_step_bytes") == states * parameters
        assert shard.predicted("optimizer_bytes") == moments * parameters
        assert shard.fact("before_step_bytes") == states * parameters + 2 * GIB
    other = rows.Shard(by_name["none"].where._replace(precision="bf16_weights"), "none")
    assert other.predicted("after_step_bytes") is None
    unknown = rows.Shard(by_name["none"].where._replace(size="7B"), "none")
    assert unknown.predicted("after_init_bytes") is None


def test_fully_sharded_steps_are_held_against_torchs_and_the_closed_forms(tmp_path: Path) -> None:
    (group,) = rows.fully_sharded_of(cells(tmp_path, parallel.fully_sharded())[FULLY_SHARDED[0]])
    none, two, torch = group
    assert [row.name for row in group] == ["prefetch_0", "prefetch_2", "torch"]
    assert two.share == pytest.approx(0.025)
    for row in (none, two):
        for name in ("gathered_bytes", "scattered_bytes"):
            assert row.fact(name) == row.predicted(name)
    assert torch.predicted("gathered_bytes") is None
    assert two.predicted("after_step_bytes") == pytest.approx(8 * 1_998_235_200, rel=1e-3)
