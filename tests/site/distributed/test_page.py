"""The page about several ranks: what a reader sees, and that nothing of a stranger's becomes markup."""

import re
from pathlib import Path
from typing import Any

from perf.site.distributed.page import Machine, render
from perf.site.distributed.rows import STRATEGIES, SWEEPS
from perf.site.newest import cells_of
from perf.site.pages import Commit, permalink
from tests.site import steps
from tests.site.distributed import made_up as parallel
from tests.site.pages import text_of
from tests.site.synthetic import H200

SERIES = frozenset({f"{STRATEGIES[0]}.track_time", f"{STRATEGIES[0]}.track_peak_memory", f"{SWEEPS[0]}.track_time"})


def plain(page: str) -> str:
    """What a reader sees, in characters that a keyboard has."""
    return text_of(page).translate({0xD7: "x", 0x2212: "-", 0x2013: "-", 0x2019: "'"})


def machine(directory: Path, cases: list[dict[str, Any]], commits: tuple[Commit, ...] = (steps.COMMIT,)) -> Machine:
    steps.write_records(directory, cases)
    cells = cells_of(directory, H200, [commit.hash for commit in commits])
    return Machine(H200, cells, {commit.hash: commit for commit in commits}, SERIES)


def page_of(directory: Path, cases: list[dict[str, Any]]) -> str:
    return render("demo", [machine(directory, cases)], "https://code.example/commit/")


def test_ten_seconds_tell_the_step_the_link_and_the_state(tmp_path: Path) -> None:
    text = plain(page_of(tmp_path, parallel.everything()))
    assert "xl, context 1024, bf16, 2 ranks: bucketed has the shortest step, 105 ms , 1.0 % of it exposed" in text
    assert "An all-reduce of 1000 MB over 2 ranks (NCCL) moves 100 GB/s over each link." in text
    assert "xl, context 512, bf16, 2 ranks: a sharded optimizer holds 50 % of the state on each rank" in text
    assert "; its step is 0.83x as fast." in text


def test_noise_makes_no_part_more_than_the_whole(tmp_path: Path) -> None:
    page = page_of(tmp_path, [parallel.strategy("naive", "step", 100.0), parallel.strategy("naive", "exposed", 105.7)])
    text = plain(page)
    assert "106 %" not in text and "over 100 %" in text
    assert 'data-value="1.057' in page, "the number itself stays"


def test_strategies_stand_beside_torch(tmp_path: Path) -> None:
    page = page_of(tmp_path, parallel.strategies())
    text = plain(page)
    assert "naive 130 ms ±248 µs 0.82x 26.0 ms ±248 µs 20 % 435 8000 40.0 GiB" in text
    assert "torch 107 ms ±248 µs - -500 µs ±248 µs -0.5 % - - 40.0 GiB" in text
    assert 'class="number fastest" data-value="0.105"' in page
    assert '<span class="communication" style="width: 20.0%"></span>' in page
    assert "In every case: xl, context 1024, batch 16, bf16, compiled_blocks, 2 ranks." in text
    more = [*parallel.strategies(), parallel.strategy("naive", "step", 200.0, params={"context_length": 512})]
    assert "naive 512 200 ms" in plain(page_of(tmp_path / "more", more)), "an axis that differs has a column"


def test_a_sweep_shows_points_intervals_the_curve_and_the_optimum(tmp_path: Path) -> None:
    page = page_of(tmp_path, parallel.sweep())
    text = plain(page)
    assert re.search(r"w = 200 GB/s, o = 20\.0 µs .* 171 MiB : 1\.79 ms", text)
    assert "100 MiB (2.10 ms)" in text
    assert "bucketed 100 80 95.4 MiB 2.10 ms ±248 µs 2.10 ms 102 ms" in text
    assert page.count('class="span ours"') == 6, "five points, and the legend's"
    assert page.count("<polyline") == 1 and page.count('class="best"') == 1
    assert "bucketed, at most 100 MiB, 80 calls: 2.1 ms exposed (1.85 to 2.35)</title>" in page
    few = plain(page_of(tmp_path / "few", parallel.sweep()[:4]))
    assert "1.79 ms" not in few and "w = " not in few
    assert "xl, context 1024, bf16, 2 ranks" in few


def test_a_sweep_that_the_model_cannot_place_says_so(tmp_path: Path) -> None:
    flat = [
        parallel.strategy("bucketed", "exposed", 8e3 / calls, bucket=bucket, benchmark=SWEEPS[0], drift_ms=0.0)
        for bucket, calls in parallel.CALLS.items()
    ]
    step = parallel.strategy("bucketed", "step", 100.0, bucket=1, benchmark=SWEEPS[0])
    page = page_of(tmp_path, [*flat, step])
    assert "outside the measured sizes" in plain(page)
    assert 'class="best"' not in page and "<polyline" in page


def test_memory_stands_beside_its_closed_form(tmp_path: Path) -> None:
    text = plain(page_of(tmp_path, parallel.sharding()))
    assert "none 100 ms ±0 ns - 7.44 GiB 7.44 GiB 31.8 GiB 29.8 GiB 31.8 GiB 29.8 GiB 14.9 GiB +0.0 % -" in text
    assert "sharded 120 ms ±0 ns 0.83x 7.44 GiB 7.44 GiB 24.3 GiB 22.3 GiB" in text
    assert "8.19 GiB +10.0 %" in text, "torch's parts are uneven"


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


def test_what_needs_more_gpus_is_said_with_the_reason_and_folded(tmp_path: Path) -> None:
    page = page_of(tmp_path, parallel.strategies())
    text = plain(page)
    assert "not available needs 4 GPUs, 2 are here <script>alert(1)</script> 10 10 cases" in text
    assert (
        "<summary>10 cases</summary>data_parallel.DataParallel(naive, 25, xl, 1024, 16, bf16, compiled_blocks, 4, step)"
        in page
    )
    assert "<script>alert" not in page
    assert "Fuse <everything>" in text
    alone = [parallel.strategy("naive", "step", 0) | parallel.NO_GPUS]
    text = plain(page_of(tmp_path / "alone", alone))
    assert "has the shortest step" not in text
    assert "needs 4 GPUs" in text


def test_a_cpu_says_that_it_is_one(tmp_path: Path) -> None:
    one = machine(tmp_path, parallel.collectives("smoke.SmokeCollectives"))
    assert "on one CPU" not in plain(render("demo", [one], "#")), "these were made up on a GPU"
    for cells in one.cells.values():
        cells[0].result.session.device.pop("sm_count", None)
    assert "on one CPU over gloo" in plain(render("demo", [one], "#"))


def test_rows_name_their_commit_where_there_are_several(tmp_path: Path) -> None:
    older = Commit("b" * 40, "Older", "2026-01-01")
    steps.write_records(tmp_path, parallel.strategies()[:4], older.hash)
    page = render("demo", [machine(tmp_path, parallel.strategies()[4:], (steps.COMMIT, older))], "#")
    assert page.count("<code>bbbbbbbb</code>") == 2, "naive's row, and the list"
    assert "commit</th>" not in page_of(tmp_path / "one", parallel.strategies())


def test_nothing_measured_is_said_with_the_command() -> None:
    text = plain(render("demo", [Machine("laptop", {}, {}, frozenset())], "#"))
    assert "laptop has no records" in text
    assert "asv run --bench '^(data_parallel|collectives|sharded_optimizer)\\.'" in text
    assert "No machine has measured anything yet." in plain(render("demo", [], "#"))
