"""The random sample: which problems a seed draws, and what is said of them and drawn."""

import itertools
import re
from dataclasses import replace

import pytest

from perf.studies.attention import results
from perf.studies.attention.cells import Cell, cells_of
from perf.studies.attention.groups import EVERY_D, GROUPS, MAX_ELEMENTS, MAX_FLOPS, Problem, fits
from perf.studies.attention.study import drawn
from perf.workloads.attention_problem import BYTES, AttentionProblem, floor

SAMPLE = GROUPS["random"]


def test_a_seed_draws_the_same_problems_on_every_machine():
    assert list(replace(SAMPLE, count=3).problems()) == [
        Problem(19, 16, 16, 1071, 40, "float16", True),
        Problem(15, 3, 3, 1421, 80, "float32", False),
        Problem(2, 16, 16, 2909, 40, "float32", False),
    ]
    first, *_ = replace(SAMPLE, seed=1).problems()
    assert first == Problem(1, 22, 22, 6064, 40, "float16", True)


def test_a_larger_sample_begins_with_the_smaller_one():
    assert list(replace(SAMPLE, count=200).problems())[:150] == list(SAMPLE.problems())


def test_every_draw_is_in_range_and_the_ends_are_reached():
    many = list(replace(SAMPLE, count=3000).problems())
    assert all(1 <= each.batch <= 32 and 1 <= each.num_heads <= 39 for each in many)
    assert all(128 <= each.seq_len <= 20000 and each.kv_heads == each.num_heads for each in many)
    assert {each.d for each in many} == set(EVERY_D)
    assert {(each.dtype, each.is_causal) for each in many} == {
        (dtype, is_causal) for dtype in ("bfloat16", "float16", "float32") for is_causal in (True, False)
    }
    assert {min(each.batch for each in many), max(each.batch for each in many)} == {1, 32}
    assert {min(each.num_heads for each in many), max(each.num_heads for each in many)} == {1, 39}
    assert min(each.seq_len for each in many) < 135 and max(each.seq_len for each in many) > 19000
    assert 0.45 < sum(each.seq_len < 1600 for each in many) / len(many) < 0.55, "log-uniform: half below the root"


def test_what_is_too_much_is_halved_no_further_than_it_must():
    for each in replace(SAMPLE, count=1000).problems():
        whole = AttentionProblem((each.batch, each.num_heads), each.seq_len, each.d, each.dtype, each.is_causal)
        least = floor(whole, "forward")
        assert least.flops <= 1.01 * MAX_FLOPS[each.dtype]
        assert least.bytes_written <= 4 * MAX_ELEMENTS
        assert fits(each)
    huge = replace(SAMPLE, count=1000, batches=(32, 32), heads=(39, 39), seq_lens=(20000, 20000))
    for each in huge.problems():
        doubled = {"batch": 2 * each.batch} if each.num_heads == 39 else {"num_heads": 2 * each.num_heads + 1}
        assert fits(each) and not fits(each._replace(**doubled))
        assert each.batch == 1 or each.num_heads == 39, "the batch is halved first"


def test_the_command_s_seed_and_count_reach_the_sample_alone():
    groups = {name: GROUPS[name] for name in ("grid", "random")}
    changed = drawn(groups, seed=3, count=7)
    assert changed["grid"] is GROUPS["grid"]
    assert (changed["random"].seed, changed["random"].count) == (3, 7)
    assert drawn(groups, seed=None, count=None) == groups
    assert len(list(cells_of({"random": changed["random"]}))) == 7 * len(SAMPLE.modes)


def of_a_cell(cell, **seconds):
    """Rows of ours, one second each, and of the others with these."""
    common = cell.axes() | {"status": "ok", "flops": 1e9}
    ours = common | {"impl": "triton", "role": "ours", "samples_s": [[1.0] * 2] * 3}
    return [ours] + [
        common | {"impl": impl, "role": "against", "samples_s": [[each] * 2] * 3} for impl, each in seconds.items()
    ]


@pytest.fixture
def rows():
    """Three cells of each mode: over the best of the others 0.5 at d 88, 2 at d 64 and 8 at d 80."""
    rows = []
    for mode in SAMPLE.modes:
        for d, dtype, best_s in ((88, "bfloat16", 0.5), (64, "float16", 2.0), (80, "float32", 8.0)):
            cell = Cell("random", 3, 10, 6272, d, dtype, False, mode, "cuda_events", "cold")
            rows += of_a_cell(cell, sdpa_cudnn=best_s, sdpa_efficient=2 * best_s)
    return rows


def test_the_means_are_over_the_best_of_the_others_by_mode_and_d(rows):
    said = [line for line in results.answers(rows, 0.02) if "random" in line and "geometric mean" in line]
    assert len(said) == 2 * 4
    for mode, lines in (("forward", said[:4]), ("forward_backward", said[4:])):
        assert all(f", {mode}, " in line for line in lines)
        found = [tuple(re.findall(r"\d+\.\d+(?=\u00d7)", line)) for line in lines]
        assert found == [("2.000", "0.500"), ("2.000", "2.000"), ("8.000", "8.000"), ("0.500", "0.500")]
        assert all("sdpa_cudnn" in line for line in lines)
        assert "3x10x6272x88 bfloat16, full" in lines[0]


def test_a_picture_of_each_mode(rows, tmp_path):
    results.draw(rows, tmp_path, "here")
    assert {path.name for path in tmp_path.iterdir()} == {f"attention-random-{mode}.png" for mode in SAMPLE.modes}


def test_the_colour_is_named_as_the_axis_is(rows, tmp_path, drawn):
    results.draw(rows, tmp_path, "here")
    assert all("seq_len" in {axes.get_ylabel() for axes in figure.axes} for figure in drawn)


@pytest.mark.parametrize("seconds", [(1.1, 9.5), (2.4, 35.0), (1.01, 200.0), (1.0, 1.02)])
def test_titles_and_ticks_of_a_figure_stay_apart_and_inside(tmp_path, drawn, seconds):
    near, far = seconds
    cells = [Cell("float32", 1, 16, 4096, d, "float32", True, "forward", "cuda_events", "cold") for d in (64, 128)]
    rows = [row for cell in cells for row in of_a_cell(cell, sdpa_efficient=near, flex=far)]
    results.draw(rows, tmp_path, "NVIDIA H100 80GB HBM3, driver 580.159.04, torch 2.11.0+cu130, triton 3.6.0")
    (figure,) = drawn
    (axes,) = figure.axes
    assert [one.get_text() for one in figure.legends[0].get_texts()] == ["SDPA efficient", "FlexAttention"]
    assert axes.get_xlabel() == "speed-up of Triton over"
    title = figure._suptitle.get_window_extent()
    assert title.x0 >= 0 and title.x1 <= figure.bbox.x1
    ticks = [
        one.label1.get_window_extent()
        for one in axes.xaxis.get_major_ticks()
        if axes.viewLim.x0 <= one.get_loc() <= axes.viewLim.x1
    ]
    assert len(ticks) > 1
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(ticks))


def test_tables_keep_the_dtypes_of_the_sample_apart(rows):
    text = "\n".join(results.shown(rows))
    assert [text.count(f"random: triton, {dtype}, ") for dtype in ("bfloat16", "float16", "float32")] == [1, 1, 1]


def test_a_figure_has_a_line_for_each_dtype_of_a_shape(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(results.speedup_figure, "draw", lambda pairs, label, *_: lines.extend(map(label, pairs)))
    cells = [Cell("aside", 1, 1, 1024, 80, dtype, True, "forward", "cuda_events", "cold") for dtype in BYTES]
    results.draw([row for cell in cells for row in of_a_cell(cell, sdpa_math=2.0)], tmp_path, "here")
    assert len(set(lines)) == len(cells)
