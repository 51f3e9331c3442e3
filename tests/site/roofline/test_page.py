"""The page about ceilings: what a reader sees of rows, and that nothing of a stranger's becomes markup."""

import dataclasses
from typing import Any

from perf.site.newest import NewestCell
from perf.site.pages import Commit, permalink
from perf.site.roofline.page import MachineRoofline, Moment, changed, render
from perf.site.roofline.rows import History, Point
from tests.site.cases import case
from tests.site.pages import text_of
from tests.site.roofline.test_rows import cell
from tests.site.trust.made_up import HOSTILE

NEWEST = Commit("a" * 40, "Fuse <everything>", "2026-01-02")
FLASH = "attention.FlashAttention"
SERIES = frozenset({f"{FLASH}.track_time"})


def machine(*cells: NewestCell, **more: Any) -> MachineRoofline:
    by_class: dict[str, list[NewestCell]] = {}
    for each in cells:
        by_class.setdefault(each.result.benchmark, []).append(each)
    return MachineRoofline(
        "gpu", SERIES, by_class, more.get("histories", {}), more.get("moments", {}), {NEWEST.hash: NEWEST}
    )


def page_of(*cells: NewestCell, **more: Any) -> str:
    return render("demo", [machine(*cells, **more)], "https://code.example/commit/")


def test_marks_and_cases_open_their_history() -> None:
    measured = cell(2.0)
    page = page_of(measured)
    href = permalink(f"{FLASH}.track_time", "gpu", measured.result.params).replace("&", "&amp;")
    assert page.count(f'href="{href}"') == 6, "the sentence, the mark, the class, its worst and best, and the row"
    assert page.count("history.html#") - page.count("history.html#/") == 6, "no link without its machine"
    assert "history.html#controls" not in page_of(cell(benchmark="controls.Controls")), "no graph, no link"


def test_steps_on_several_ranks_are_training_steps_too() -> None:
    steps = ["data_parallel.DataParallel", "smoke.SmokeFullySharded", "sharded_optimizer.ShardedOptimizer"]
    text = text_of(page_of(*(cell(benchmark=name, params={"size": "xl"}) for name in steps)))
    assert "training steps" in text and "other work" not in text
    assert "other work" in text_of(page_of(cell(benchmark="linear_cross_entropy.LinearCrossEntropy")))


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


def test_a_reason_a_name_and_a_subject_cannot_become_markup() -> None:
    named = cell()
    hostile = dataclasses.replace(named.result, params=named.result.params | {"mode": HOSTILE})
    failed = NewestCell(case(status="error", reason=HOSTILE, visits=()), NEWEST.hash)
    page = page_of(named, NewestCell(hostile, NEWEST.hash), failed)
    assert "<script>alert" not in page and "<img" not in page
    assert "error <script>alert(1)</script>" in text_of(page)
    assert "Fuse <everything>" in text_of(page)


def test_all_classes_of_a_commit_are_measured_again_by_one_command() -> None:
    text = text_of(page_of(cell(), cell(2.0), cell(benchmark="controls.Controls")))
    command = r"asv run --bench '^(attention\.FlashAttention|controls\.Controls)\.' aaaaaaaa^!"
    assert text.count("asv run") == text.count(command) == 1
