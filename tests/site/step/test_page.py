"""The page about training steps: rows of cells, and what a reader sees of them."""

from pathlib import Path

import pytest

from cs336_systems.accounting.peak import peak_step_bytes
from cs336_systems.configs import MODEL_CONFIGS
from perf import units
from perf.site.newest import NewestCell
from perf.site.pages import Commit, permalink
from perf.site.step.page import MachineSteps, render
from perf.site.step.rows import PHASES, phases_of, ways_of
from tests.site import steps
from tests.site.pages import text_of
from tests.site.synthetic import H200

SERIES = frozenset({f"{PHASES}.track_time", f"{PHASES}.track_peak_memory"})


def page_of(phases, variants=(), series=SERIES, **more):
    known = [steps.COMMIT, *more.get("commits", ())]
    return render("demo", [MachineSteps(H200, series, phases, variants, known)], "https://code.example/commit/")


def test_a_model_is_one_row_whose_parts_share_the_steps_time(tmp_path: Path) -> None:
    (row,) = phases_of(steps.cells(tmp_path, steps.phases()))
    assert row.seconds("wall", "step") == pytest.approx(0.08)
    assert row.busy_share == pytest.approx(0.75)
    parts = {"forward": 0.75 * 2 / 7, "backward": 0.75 * 4 / 7, "optimizer": 0.75 / 7, "waiting": 0.25}
    assert row.parts == pytest.approx(parts)
    assert row.flops_per_s == pytest.approx(1e14)


def test_a_step_is_held_against_the_ceiling_and_the_closed_form(tmp_path: Path) -> None:
    predicted = peak_step_bytes(MODEL_CONFIGS["small"], 4, 512, precision="bf16")
    cases = [one | {"bytes": round(1.02 * predicted)} for one in steps.phases()]
    cells = steps.cells(tmp_path / "bf16", cases)
    (row,) = phases_of(cells)
    assert row.predicted_step_bytes == predicted
    assert row.utilization == pytest.approx(1e14 / steps.CEILING)
    text = text_of(page_of(cells))
    assert "100 25 %" in text
    assert f"{units.memory(1.02 * predicted)} +2.0 %" in text
    exact = [one | {"params": one["params"] | {"precision": "fp32"}} for one in cases]
    (row,) = phases_of(steps.cells(tmp_path / "fp32", exact))
    assert row.utilization is None, "the ceiling of float32 is TF32's"
    unknown = [one | {"params": one["params"] | {"size": "7B"}} for one in cases]
    (row,) = phases_of(steps.cells(tmp_path / "7B", unknown))
    assert row.predicted_step_bytes is None


def test_a_phase_without_a_time_leaves_the_others(tmp_path: Path) -> None:
    cases = steps.phases()
    cases[0] = steps.full(cases[0])
    cases[1] = steps.full(cases[1])
    (row,) = phases_of(steps.cells(tmp_path, cases))
    assert row.seconds("wall", "forward") is None
    assert row.seconds("wall", "backward") is not None
    assert row.busy_share is not None
    assert row.parts == {}


def test_a_model_with_none_of_the_shown_numbers_has_no_row_and_no_table(tmp_path: Path) -> None:
    busy = [one for one in steps.phases() if one["clock"] == "device_busy"]
    way = steps.way("bf16", "eager", "sdpa", 30.0)
    cells = steps.cells(tmp_path / "busy", [*busy, way])
    assert "Phases" not in text_of(page_of(cells[:-1], cells[-1:]))
    cells = steps.cells(tmp_path / "both", [*busy, *steps.phases("xl")])
    text = text_of(page_of(cells))
    assert "xl 512 bf16" in text and "small 512 bf16" not in text


def test_small_models_come_first_in_any_order_of_measuring(tmp_path: Path) -> None:
    cells = steps.cells(tmp_path, [*steps.phases("2.7B"), *steps.phases("xl"), *steps.phases("small")])
    assert [row.size for row in phases_of(cells)] == ["small", "xl", "2.7B"]


def test_a_row_is_of_one_commit(tmp_path: Path) -> None:
    newer = steps.cells(tmp_path / "new", steps.phases()[:4])
    older = steps.cells(tmp_path / "old", steps.phases(), "b" * 40)
    (row,) = phases_of([*newer, *older[4:]])
    assert row.commit == steps.COMMIT.hash
    assert sorted(row.wall) == ["backward", "forward"]


def test_a_few_newer_cells_do_not_empty_a_row(tmp_path: Path) -> None:
    newer = steps.cells(tmp_path / "new", steps.phases()[:1])
    older = steps.cells(tmp_path / "old", steps.phases(), "b" * 40)
    (row,) = phases_of([*newer, *older[1:]])
    assert row.commit == "b" * 40
    assert len(row.wall) + len(row.busy) == len(older) - 1


def test_ways_are_held_against_plain_pytorch_and_the_fastest_is_marked(tmp_path: Path) -> None:
    measured = steps.cells(
        tmp_path,
        [
            steps.way("bf16", "eager", "sdpa", 30.0),
            steps.way("bf16_weights", "compiled_cuda_graph", "sdpa", 10.0),
            steps.full(steps.way("bf16", "eager", "triton", 1.0)),
        ],
    )
    (row,) = ways_of(measured)
    assert row.fastest == ("bf16_weights", "compiled_cuda_graph", "sdpa")
    page = page_of([], measured)
    assert '<td class="number fastest" data-value="0.01">' in page
    text = text_of(page)
    assert "10.0 ms ± 0.0 %, 3.00\u00d7" in text
    headline = "small, context 512: bf16_weights, compiled_cuda_graph, sdpa has the shortest step, 10.0 ms ± 0.0 %"
    assert f"{headline} , 3.00\u00d7 ± 0.0 % as fast as bf16, eager, sdpa, 800 TFLOP/s, 200 % MFU." in text
    assert "30.0 ms 1.00\u00d7" not in text_of(page), "the baseline has no ratio to itself"
    assert "OOM" in text_of(page)


def test_variants_without_the_baseline_have_a_fastest_and_no_speedup(tmp_path: Path) -> None:
    ways = [steps.way(precision, "eager", "triton", 30.0) for precision in ("bf16", "bf16_weights")]
    text = text_of(page_of([], steps.cells(tmp_path, ways)))
    assert "bf16, eager, triton has the shortest median step, 30.0 ms" in text
    assert "; not distinguishable: bf16_weights, eager, triton." in text
    assert "speed-up over" not in text
    failed = text_of(page_of([], steps.cells(tmp_path / "failed", map(steps.full, ways))))
    assert "OOM" in failed and "shortest" not in failed


def test_numbers_open_their_history_and_the_bar_is_told_in_words(tmp_path: Path) -> None:
    cells = steps.cells(tmp_path, steps.phases())
    page = page_of(cells)
    (step,) = (one.result for one in cells if one.result.params["mode"] == "step" and one.result.clock == "gpu_wall")
    for method in ("track_time", "track_peak_memory"):
        assert f'href="{permalink(f"{PHASES}.{method}", H200, step.params)}"'.replace("&", "&amp;") in page
    assert 'aria-label="forward 21\u00a0%, backward 43\u00a0%, optimizer 11\u00a0%, waiting 25\u00a0%"' in page
    text = text_of(page)
    assert "80.0 ms" in text
    assert "history.html#transformer" not in page_of(cells, series=frozenset()), "no graph, no link"


def test_every_commit_of_the_page_is_measured_again_by_a_command(tmp_path: Path) -> None:
    other = Commit("b" * 40, "Another", "2026-01-02")
    cells = steps.cells(tmp_path, steps.phases())
    text = text_of(page_of([*cells, NewestCell(cells[0].result, other.hash)], commits=[other]))
    for commit in (steps.COMMIT, other):
        assert f"asv run --bench '^(transformer\\.Transformer)\\.' {commit.hash[:8]}^!" in text


def test_a_reason_and_a_subject_cannot_become_markup(tmp_path: Path) -> None:
    page = page_of(steps.cells(tmp_path, map(steps.full, steps.phases())))
    assert "<script>alert" not in page
    assert "2 GiB <script>alert(1)</script>" in text_of(page)
    assert "Fuse <everything>" in text_of(page)
