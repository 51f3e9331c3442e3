"""Tables fit a terminal and lose nothing."""

import itertools

import pytest

from perf.harness.working_tree import ROOT
from perf.tables import MAX_WIDTH, terminal_width, text_table

WORDS = ("0.5", "12.25 ms ± 0.3 %", "cs336_systems/training.py:115 backward < memory/recording.py:57 whole_step", "")


def made_up(columns, rows=4):
    words = itertools.cycle(WORDS)
    return [{f"column number {i}": f"{row}{i} {next(words)}".strip() for i in range(columns)} for row in range(rows)]


@pytest.mark.parametrize("width", [60, 100, 120])
@pytest.mark.parametrize("columns", [1, 3, 8, 15, 40])
def test_no_line_is_wider_than_the_terminal(columns, width):
    shown = text_table(made_up(columns), width=width)
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("columns", [1, 3, 8, 15, 40])
def test_every_title_and_number_is_there(columns):
    shown = text_table(made_up(columns), width=100)
    for i in range(columns):
        assert {f"0{i}", f"3{i}"} <= set(shown.split())
    assert shown.count("number") >= columns


def test_a_table_that_fits_is_not_folded():
    rows = [{"size": "small", "step, ms": 7.25}, {"size": "small", "step, ms": 8}]
    assert text_table(rows, width=60).splitlines() == [
        "size   step, ms",
        "-----  --------",
        "small  7.25",
        "small  8",
    ]


def test_what_is_the_same_in_every_row_is_told_once():
    rows = [{"size": f"{i}", "precision": "bf16_weights", "what": "x" * 60} for i in range(3)]
    shown = text_table(rows, width=60)
    assert shown.count("bf16_weights") == 1
    assert text_table(rows[:1], width=60).count("precision") == 1


def test_further_columns_repeat_the_keys():
    shown = text_table(made_up(40), width=100, keys=2)
    tables = shown.split("\n\n")
    assert len(tables) > 2
    assert all("00" in table.split() and "21" in table.split() for table in tables)


def test_missing_cells_and_no_rows():
    assert "None" not in text_table([{"a": 1}, {"b": None}])
    assert text_table([]).strip() == ""


@pytest.mark.parametrize(("columns", "expected"), [("300", MAX_WIDTH), ("100", 100), ("0", MAX_WIDTH), ("10", 60)])
def test_the_width_is_the_terminals_within_bounds(columns, expected, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == expected


def test_a_text_is_a_line_of_its_own():
    rows = ["of the first", {"size": 1, "step": 22}, {"size": 2, "step": 3}, "of the second", {"size": 4}]
    assert text_table(rows, align=("left", "right")).splitlines() == [
        "size  step",
        "----  ----",
        "of the first",
        "1       22",
        "2        3",
        "of the second",
        "4",
    ]


def test_there_is_no_other_table():
    assert not [path for path in ROOT.glob("perf/**/*.py") if "tabulate" in path.read_text()]


def test_a_word_is_broken_only_where_lines_of_whole_words_do_not_fit():
    name = "controls.Controls('matmul',"
    rows = [{"row": f"{name} 'cold')"} | {f"{i} %": f"{i} of 100: above 97.0 %" for i in range(5)} for _ in range(2)]
    assert name in text_table([*rows, {"row": "another"}], width=80)
    assert name not in text_table([*rows, {"row": "another"}], width=60)
