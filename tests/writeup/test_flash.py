"""flash_benchmarking and the claims: numbers are those of the cells, failures are said, and nothing is filled in."""

import math
from datetime import UTC, datetime

import pandas
import pytest

from perf.studies.on_file import NotOnFile
from perf.writeup import answered, claims, flash, source
from perf.writeup.editions import FLASH
from perf.writeup.templating import render
from tests.writeup.made_up import MACHINE, perf_folder

DATE = datetime(2026, 1, 1, tzinfo=UTC)


def cell(impl, value, *, commit="a" * 40, status="ok", quantity="time", date=DATE, environment="one", **axes):
    axes = {"seq_len": 2048, "d": 64, "dtype": "bfloat16", "mode": "forward_backward"} | axes
    return {
        **{"machine": MACHINE, "benchmark": "attention.FlashAttention", "quantity": quantity, "commit": commit},
        **{"impl": impl, "value": value, "low": value, "high": value, "status": status, "reason": "", "date": date},
        "environment": environment,
        **axes,
    }


def source_of(tmp_path, cells):
    folder = perf_folder(tmp_path / "perf", {})
    return source.Source(MACHINE, folder, pandas.DataFrame(cells), ())


def test_a_table_has_both_times_and_the_gain():
    (row,) = flash.latencies(pandas.DataFrame([cell("triton", 0.002), cell("reference", 0.0066)])).to_dict("records")
    assert row == {"seq_len": 2048, "both: ours": "2.000", "both: eager": "6.600", "both: speed-up": "3.30×"}


def test_what_failed_says_how_and_has_no_gain():
    cells = [cell("triton", 0.002), cell("reference", math.nan, status="out_of_memory")]
    cells += [cell("triton", 0.001, seq_len=128), cell("reference", 0.002, seq_len=128)]
    short, long = flash.latencies(pandas.DataFrame(cells)).to_dict("records")
    assert short["both: speed-up"] == "2.00×"
    assert (long["both: eager"], long["both: speed-up"]) == ("OOM", "")


def test_the_commit_is_that_of_most_cells(tmp_path):
    newer = datetime(2026, 2, 1, tzinfo=UTC)
    cells = [cell("triton", 0.002), cell("reference", 0.006), cell("triton", 0.001, commit="b" * 40, date=newer)]
    assert set(source_of(tmp_path, cells).newest_cells("attention.FlashAttention")["commit"]) == {"a" * 40}


def test_cells_of_two_environments_of_a_commit_are_not_mixed(tmp_path):
    cells = [cell("triton", 0.002), cell("reference", 0.006), cell("triton", 0.009, environment="other")]
    found = source_of(tmp_path, cells).newest_cells("attention.FlashAttention")
    assert found["value"].tolist() == [0.002, 0.006]


def grid():
    """Ours 2.5 times as fast as eager and half as fast as SDPA in all cells but one, where eager is twice as fast."""
    cells = [
        cell(impl, value * seq_len, dtype=dtype, mode=mode, seq_len=seq_len)
        for dtype in ("bfloat16", "float32")
        for mode in flash.MODES
        for seq_len in (1024, 8192)
        for impl, value in (("triton", 1e-6), ("reference", 2.5e-6), ("sdpa", 0.5e-6))
    ]
    cells[0]["value"] = cells[0]["high"] = 5e-6 * 1024
    return cells


def test_the_figures_of_a_grid_are_those_of_its_cells():
    cells = pandas.DataFrame(grid())
    assert flash.compared(cells, "reference") == {"cells": 12, "faster": 11, "mean": "2.19× ±\u00a00.0\u00a0%"}
    assert flash.compared(cells, "sdpa")["faster"] == 0
    assert flash.compared(cells, "flex") == {}
    longest = flash.longest(cells)
    assert longest["seq_len"] == 8192
    assert longest["gains"] == {dtype: pytest.approx([2.5] * 3) for dtype in ("bfloat16", "float32")}
    slower = flash.slower(cells)
    assert (slower["cells"], slower["by_dtype"], slower["short"]) == (1, {"bfloat16": 1}, 1)
    assert (slower["worst"]["seq_len"], slower["worst"]["mode"], slower["worst"]["gain"]) == (1024, "forward", 0.5)
    assert flash.grows(cells)


def test_what_the_interval_does_not_resolve_is_neither_faster_nor_slower():
    cells = grid()
    for one in cells:
        one["high"] = 3 * one["value"]
    cells = pandas.DataFrame(cells)
    assert flash.compared(cells, "reference")["faster"] == flash.slower(cells)["cells"] == 0


@pytest.mark.parametrize("impls", [("triton", "reference", "sdpa"), ("triton", "reference"), ("triton",)])
def test_a_chapter_is_made_of_whatever_was_measured(impls, undrawn, tmp_path):
    cells = [one for one in grid() if one["impl"] in impls]
    said = flash.benchmarking(source_of(tmp_path, cells), tmp_path / "figures")
    assert said.count("### ") == 2
    assert ("2.19×" in said) == ("reference" in impls)
    assert ("0 of 12" in said) == ("sdpa" in impls)
    assert (tmp_path / "figures" / "flash-benchmarking.png").is_file()


def test_without_cells_there_is_no_chapter(tmp_path):
    empty = source_of(tmp_path, [])
    for chapter in (flash.benchmarking, flash.leaderboard):
        with pytest.raises(NotOnFile):
            chapter(empty, tmp_path)


def test_the_committed_grid_is_whole(committed_source):
    assert FLASH.missing(committed_source) == []
    assert len(FLASH.asked) == 10 * 4 * 2 * 3 * 2


def claimed(source):
    known = answered.values(source, lambda words, name: "")
    known |= {"claims": claims.Claims(source), "else_command": claims.else_command(MACHINE), "needs": claims.NEEDS}
    return render("claims.md", known)


def test_every_claim_has_a_number_or_the_command_that_makes_it(committed_source, tmp_path):
    full = claimed(committed_source)
    assert full.count("not measured: on that GPU `asv run") == full.count("not measured") == 1
    empty = claimed(source_of(tmp_path, []))
    assert empty.count("not measured") == sum(line.startswith("| ") for line in empty.splitlines()) - 2


def test_a_claim_is_held_against_the_cells(tmp_path):
    cells = [cell("triton", 0.002), cell("reference", 0.006)]
    cells += [cell("triton", 100.0, quantity="peak_memory"), cell("reference", 450.0, quantity="peak_memory")]
    found = claims.Claims(source_of(tmp_path, cells))
    assert found.gains("time", 2048) == pytest.approx([3.0])
    assert found.gains("peak_memory", 1024, and_longer=True) == pytest.approx([4.5])
    for absent in (lambda: found.gains("time", 1024), lambda: found.tiled("float32")):
        with pytest.raises(NotOnFile):
            absent()


def test_a_loop_over_tiles_spends_its_time_on_the_host(committed_source):
    for dtype in ("float32", "bfloat16"):
        launches, share = claims.Claims(committed_source).tiled_kernels(dtype)
        assert launches > 1000 and 0 < share < 0.5
