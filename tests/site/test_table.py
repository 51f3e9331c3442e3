"""Tables of cells: which columns there are, and what a cell is sorted by."""

from perf import units
from perf.site.estimate import Estimate
from perf.site.pages import render
from perf.site.table import Cell, duration, number, parameter, table, text
from tests.site.cases import case


def test_a_column_without_content_is_left_out_and_a_missing_cell_is_empty() -> None:
    rows = [
        ("a", {"name": text("a"), "share": number(None, units.percent)}),
        ("b", {"name": text("b"), "note": Cell("late")}),
    ]
    found = table(rows)
    assert found and [column.title for column in found.columns] == ["name", "note"] and not found.has("share")
    assert [[cell.text for cell in cells] for _, cells in found.rows] == [["a", ""], ["b", "late"]]
    assert table([]) is None


def test_a_column_is_what_its_cells_are() -> None:
    found = table(
        [
            (
                "x",
                {
                    "mask": parameter(True, "causal"),
                    "d": parameter(64),
                    "time": number(0.5, units.seconds),
                    "note": Cell("n"),
                },
            )
        ]
    )
    assert found
    kinds = {one.title: (one.is_number, one.is_axis, one.is_sortable) for one in found.columns}
    assert kinds == {
        "mask": (False, True, True),
        "d": (True, True, True),
        "time": (True, False, True),
        "note": (False, False, False),
    }
    assert [cell.sorted_by for cell in found.rows[0][1]] == ["True", "64", "0.5", ""]
    assert [cell.says_its_value for cell in found.rows[0][1]] == [False, True, False, False]
    assert not number(4, str, beside="of 8").says_its_value and not number(None, str).says_its_value


def test_a_time_that_is_not_there_has_its_reason() -> None:
    assert duration(case(), Estimate(0.5, 0.4, 0.6), beside="±20 %").text == "500 ms"
    failed = duration(case(status="out_of_memory", reason="why", visits=()), None, beside="±?")
    assert (failed.text, failed.title, failed.classes, failed.beside) == ("OOM", "why", "failed", "")
    assert duration(None, None).title == "not measured"


def test_a_machine_without_measurements_is_named_on_every_page() -> None:
    page = render("step", "demo", "#", {"<b>gpu": None})
    assert "&lt;b&gt;gpu</strong> has no records of training steps." in page
    assert "No machine has measured" in render("step", "demo", "#", {})
