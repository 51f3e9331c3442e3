"""The page about several ranks: what a reader sees, and that nothing of a stranger's becomes markup."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from perf.site.distributed.page import MachineDistributed, render
from perf.site.distributed.rows import STRATEGIES, SWEEPS
from perf.site.newest import NewestCell, cells_of, read_commit
from perf.site.pages import Commit, permalink
from tests.site import steps
from tests.site.distributed import made_up as parallel
from tests.site.pages import text_of
from tests.site.synthetic import H200

SERIES = frozenset({f"{STRATEGIES[0]}.track_time", f"{STRATEGIES[0]}.track_peak_memory", f"{SWEEPS[0]}.track_time"})


def plain(page: str) -> str:
    """What a reader sees, in characters that a keyboard has."""
    return text_of(page).translate({0xD7: "x", 0x2212: "-", 0x2013: "-", 0x2019: "'"})


def machine(
    directory: Path, cases: list[dict[str, Any]], commits: tuple[Commit, ...] = (steps.COMMIT,)
) -> MachineDistributed:
    steps.write_records(directory, cases)
    cells = cells_of((commit.hash, read_commit(directory, H200, commit.hash)) for commit in commits)
    return MachineDistributed(H200, SERIES, cells, {commit.hash: commit for commit in commits})


def page_of(directory: Path, cases: list[dict[str, Any]]) -> str:
    return render("demo", [machine(directory, cases)], "https://code.example/commit/")


def test_noise_makes_no_part_more_than_the_whole(tmp_path: Path) -> None:
    page = page_of(tmp_path, [parallel.strategy("naive", "step", 100.0), parallel.strategy("naive", "exposed", 105.7)])
    text = plain(page)
    assert "106 %" not in text and "over 100 %" in text
    assert 'data-value="1.057' in page, "the number itself stays"


def test_strategies_stand_beside_torch(tmp_path: Path) -> None:
    page = page_of(tmp_path, parallel.strategies())
    text = plain(page)
    assert "naive 130 ms ± 0.2 % 0.82x ± 0.3 % 26.0 ms ± 248 µs 20 % 435 8000 40.0 GiB" in text
    assert "torch 107 ms ± 0.2 % - -500 µs ± 248 µs -0.5 % - - 40.0 GiB" in text
    assert 'class="number fastest" data-value="0.105"' in page
    assert '<span class="communication" style="width: 20.0%"' in page
    said = "Its share of the step is known"
    assert said in text and said not in plain(page_of(tmp_path / "alone", parallel.strategies()[:1])), "no such column"


def test_fully_sharded_steps_stand_beside_torch_and_the_closed_forms(tmp_path: Path) -> None:
    text = plain(page_of(tmp_path, parallel.fully_sharded()))
    assert "prefetch_2 104 ms ± 0.2 % 1.03x ± 0.3 % 2.60 ms ± 248 µs 2.5 % 8.00 GiB 32.0 GiB 14.9 GiB" in text
    assert "7928 7928 3996 3996" in text, "MB gathered and scattered, each beside its closed form"
    assert "(prefetch_2) takes 104 ms ± 0.2 % , 1.03x ± 0.3 % as fast as FSDP2's" in text, "the fastest of ours"
    assert "in float32 (ours sends them in bfloat16)" in text
    assert "gathered in bfloat16." in text
    wide = [one | {"params": one["params"] | {"compute_dtype": "float32"}} for one in parallel.fully_sharded()]
    text = plain(page_of(tmp_path / "both", [*parallel.fully_sharded(), *wide]))
    assert "prefetch_2 bfloat16 104 ms" in text and "prefetch_2 float32 104 ms" in text
    assert "gathered in bfloat16." not in text


def test_a_fully_sharded_step_is_held_against_torchs_in_the_same_dtype(tmp_path: Path) -> None:
    torchs = [one for one in parallel.fully_sharded() if one["params"]["sharding"] == "torch"]
    default = [one | {"ms": 0.5 * one["ms"], "params": one["params"] | {"sharding": "torch_default"}} for one in torchs]
    text = plain(page_of(tmp_path, [*parallel.fully_sharded(), *default]))
    assert "0.52x ± 0.5 % as fast as FSDP2's, which reduces gradients in bfloat16" in text
    assert "torch_default 53.6 ms ± 0.5 % - " in text and "torch 107 ms ± 0.2 % 0.50x" in text


def test_nothing_is_called_the_shortest_step_whose_interval_touches_another(tmp_path: Path) -> None:
    noisy = parallel.strategy("bucketed", "step", 105.0) | {"drift_ms": 5.0}
    cases = [noisy, *(one for one in parallel.strategies() if one["params"] != noisy["params"])]
    page = page_of(tmp_path, cases)
    text = plain(page)
    assert "bucketed has the shortest median step, 105 ms ±" in text
    assert re.search(r"105 ms ± [\d.]+ % , 1\.02x ± [\d.]+ % as fast as torch's DistributedDataParallel", text)
    assert "not distinguishable: overlapped, torch" in text
    assert 'class="number fastest"' not in page
    assert "bucketed has the shortest step, 105 ms ± 0.2 %" in plain(page_of(tmp_path / "apart", parallel.strategies()))


def test_a_headline_is_of_the_largest_setting_with_an_interval(tmp_path: Path) -> None:
    for cases in (parallel.strategies(), parallel.sharding(), parallel.fully_sharded()):
        longer = [one | {"params": one["params"] | {"context_length": 4096}} for one in cases]
        known = machine(tmp_path / cases[0]["benchmark"], [*cases, *longer])
        assert "context 4096, bf16, 2 ranks:" in plain(render("demo", [known], "#"))
        (benchmark, cells), *_ = known.cells.items()
        single = {
            benchmark: [_of_one_sample(one) if one.result.params["context_length"] == 4096 else one for one in cells]
        }
        text = plain(render("demo", [dataclasses.replace(known, cells=single)], "#"))
        assert re.search("context (1024|512), bf16, 2 ranks:", text) and "context 4096, bf16, 2 ranks:" not in text


def _of_one_sample(cell: NewestCell) -> NewestCell:
    visits = tuple(visit[:1] for visit in cell.result.visits_s[:1])
    return dataclasses.replace(cell, result=dataclasses.replace(cell.result, visits_s=visits))


def test_an_all_reduce_is_told_per_gpu_and_direction_with_its_interval(tmp_path: Path) -> None:
    text = plain(page_of(tmp_path, [one | {"drift_ms": min(0.1, one["ms"] / 4)} for one in parallel.collectives()]))
    assert "ranks (NCCL): 100 GB/s ± 2.5 % of bus bandwidth per GPU and direction" in text
    assert "each link" not in text


def test_a_sharded_step_stands_with_its_interval(tmp_path: Path) -> None:
    cases = [one | {"drift_ms": 5.0} for one in parallel.sharding()]
    assert "its step takes 120 ms ± 10 %, 0.83x ± 16 % as fast" in plain(page_of(tmp_path, cases))


def test_numbers_and_marks_open_their_history(tmp_path: Path) -> None:
    one = machine(tmp_path, parallel.everything())
    page = render("demo", [one], "#")
    (naive,) = (
        cell.result
        for cell in one.cells[STRATEGIES[0]]
        if cell.result.params | {"strategy": "naive", "world_size": 2, "mode": "step"} == cell.result.params
    )
    for method in ("track_time", "track_peak_memory"):
        assert f'href="{permalink(f"{STRATEGIES[0]}.{method}", H200, naive.params)}"'.replace("&", "&amp;") in page
    assert page.count(f'<a href="history.html#{SWEEPS[0]}.track_time') == 30, "ten marks, and two columns of the table"
    assert "history.html#collectives" not in page, "no graph, no link"


def test_what_needs_more_gpus_is_one_block_of_each_class_with_the_reason(tmp_path: Path) -> None:
    page = page_of(tmp_path, parallel.strategies())
    text = plain(page)
    outcome = "unavailable needs 4 GPUs, 2 are here <script>alert(1)</script>"
    assert f"data_parallel.DataParallel {outcome} 10 world_size 4" in text
    assert "<script>alert" not in page
    assert "Fuse <everything>" in text
