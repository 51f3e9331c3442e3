"""The page about ceilings: what a reader sees of rows, and that nothing of a stranger's becomes markup."""

import dataclasses
import re
from typing import Any

import pytest

from perf.site.newest import Cell
from perf.site.pages import Commit, permalink
from perf.site.roofline.page import MIN_POINTS, Machine, Moment, changed, render, share
from perf.site.roofline.rows import History, Point
from tests.site.cases import case
from tests.site.pages import text_of
from tests.site.roofline.test_rows import cell
from tests.site.trust.made_up import HOSTILE

NEWEST = Commit("a" * 40, "Fuse <everything>", "2026-01-02")
FLASH = "attention.FlashAttention"
SERIES = frozenset({f"{FLASH}.track_time"})


def machine(*cells: Cell, **more: Any) -> Machine:
    by_class: dict[str, list[Cell]] = {}
    for one in cells:
        by_class.setdefault(one.result.benchmark, []).append(one)
    return Machine("gpu", by_class, more.get("histories", {}), more.get("moments", {}), {NEWEST.hash: NEWEST}, SERIES)


def page_of(*cells: Cell, **more: Any) -> str:
    return render("demo", [machine(*cells, **more)], "https://code.example/commit/")


def test_the_page_leads_with_a_sentence_and_a_picture() -> None:
    peer = Cell(case("sdpa", visits=((4.0,) * 4,) * 3), NEWEST.hash)
    page = page_of(cell(2.0), cell(1.0), cell(5.0), peer, cell(2.0, flops=0.0, benchmark="controls.Controls"))
    text = text_of(page)
    assert 'asv run --bench "$(python -m perf select gpu)" aaaaaaaa^!' in text
    smoke = page_of(cell(benchmark="smoke.SmokeControls"))
    assert 'asv run --bench "$(python -m perf select smoke)" aaaaaaaa^!' in text_of(smoke)
    assert re.search(r"3 cases .* 25 % of the ceiling\. Maximum: 50 %", text)
    assert page.index('class="chart"') < page.index('class="cases"')
    assert "4 cases under the roofs of gpu; every figure is in the table below" in text
    assert "bfloat16 1.00 TFLOP/s" in text and "copy 1.00 GB/s" in text
    assert "1 case without arithmetic" in text
    assert page.count('class="dot attention" d="M') == 4, "three marks, and the legend's"
    assert re.search(r'class="dot peer" d="M[\d.]+ [\d.]+h0"', page)
    assert "25\u00a0% of the ceiling, 250 GFLOP/s at 5000 FLOP/byte</title>" in page


def test_marks_and_cases_open_their_history() -> None:
    one = cell(2.0)
    page = page_of(one)
    href = permalink(f"{FLASH}.track_time", "gpu", one.result.params).replace("&", "&amp;")
    assert page.count(f'href="{href}"') == 5, "the sentence, the mark, the worst and the best of the class, and the row"
    assert f'href="history.html#{FLASH}.track_time"' in page
    assert "history.html#controls" not in page_of(cell(benchmark="controls.Controls")), "no graph, no link"


def test_ours_come_first_and_the_lowest_on_top() -> None:
    peer = Cell(case("sdpa", visits=((8.0,) * 4,) * 3), NEWEST.hash)
    table = text_of(page_of(cell(1.0), peer, cell(4.0)).partition('class="cases every"')[2])
    assert table.index("12 % seq_len") < table.index("50 % seq_len") < table.index("6.2 % seq_len")
    assert "arithmetic 4.00 s 0.0 % 5000 125 25.0 MB/s" in table


def history(*fractions: float) -> dict[str, Any]:
    points = [Point(number, fraction, {}) for number, fraction in enumerate(fractions)]
    return {"histories": {FLASH: History(7, points, {"seq_len": 8192})}}


def test_a_history_says_how_far_it_moved_and_where_the_environment_changed() -> None:
    moments = {
        number: Moment(Commit(f"{number}" * 40, f"Commit {number}", f"2026-01-0{number + 1}"), {"torch": torch})
        for number, torch in enumerate(("2.11.0", "2.11.0", "2.13.0"))
    }
    page = page_of(cell(), **history(0.4, 0.5, 0.45), moments=moments)
    text = text_of(page)
    assert "45 % -10.0 % 7 3" in text
    assert (
        "22222222 Commit 2 2026-01-03 45 % -10.0 % torch 2.11.0 to 2.13.0 11111111 Commit 1 2026-01-02 50 % +25.0 %"
        in text
    )
    assert page.count('class="break"') == 1
    assert f'class="spark" href="history.html#{FLASH}.track_time?machine=gpu&amp;p-seq_len=8192"' in page
    assert "All commits of" not in page_of(cell(), **history(0.4), moments=moments), "one commit is no history"


def test_an_environment_changes_by_what_is_known_of_both() -> None:
    assert (
        changed({"torch": "2.11.0", "driver": "580"}, {"torch": "2.13.0", "harness": "2"}) == "torch 2.11.0 to 2.13.0"
    )
    assert changed({}, {"torch": "2.13.0"}) == ""


@pytest.mark.parametrize(("fraction", "text"), [(0.61, "61"), (0.042, "4.2"), (0.00034, "0.034"), (1.034, "103")])
def test_small_shares_keep_two_digits(fraction: float, text: str) -> None:
    assert share(fraction) == f"{text}\u00a0%"


def test_a_reason_a_name_and_a_subject_cannot_become_markup() -> None:
    named = cell()
    hostile = dataclasses.replace(named.result, params=named.result.params | {"mode": HOSTILE})
    failed = Cell(case(status="error", reason=HOSTILE, visits=()), NEWEST.hash)
    page = page_of(named, Cell(hostile, NEWEST.hash), failed)
    assert "<script>alert" not in page and "<img" not in page
    assert "error <script>alert(1)</script>" in text_of(page)
    assert "Fuse <everything>" in text_of(page)


def test_what_has_no_ceiling_is_said() -> None:
    assert "No machine has measured anything yet." in text_of(render("demo", [], "#"))
    silent = render("demo", [machine(cell(matmul_dtype="float16"))], "#")
    assert "gpu has no records" in text_of(silent)
    controls = page_of(cell(benchmark="controls.Controls"))
    assert "Only controls and peers" in text_of(controls)
    assert MIN_POINTS == 2
