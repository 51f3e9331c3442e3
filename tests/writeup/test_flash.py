"""flash_benchmarking and the claims: numbers are those of the cells, failures are said, and nothing is filled in."""

import math
from datetime import UTC, datetime

import pandas
import pytest

from perf.studies.on_file import NotOnFile
from perf.writeup import claims, flash, source
from perf.writeup.problems import FLASH
from tests.writeup.made_up import MACHINE, perf_folder

DATE = datetime(2026, 1, 1, tzinfo=UTC)


def cell(impl, value, *, commit="a" * 40, status="ok", quantity="time", date=DATE, **axes):
    axes = {"seq_len": 2048, "d": 64, "dtype": "bfloat16", "mode": "forward_backward"} | axes
    return {
        **{"machine": MACHINE, "benchmark": "attention.FlashAttention", "quantity": quantity, "commit": commit},
        **{"impl": impl, "value": value, "low": value, "high": value, "status": status, "reason": "", "date": date},
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


def test_the_chapter_follows_its_cells(tmp_path):
    cells = [
        cell(impl, value * seq_len, dtype=dtype, mode=mode, seq_len=seq_len)
        for dtype in ("bfloat16", "float32")
        for mode in flash.MODES
        for seq_len in (1024, 8192)
        for impl, value in (("triton", 1e-6), ("reference", 2.5e-6), ("sdpa", 0.5e-6))
    ]
    cells[0]["value"] = cells[0]["high"] = 5e-6 * 1024  # one cell in which ours is the slower: 0.5 times as fast
    said = flash.benchmarking(source_of(tmp_path, cells), tmp_path / "figures")
    assert "Ours is faster in 11 of 12 cells, 2.19× ± 0.0\u00a0% in the geometric mean" in said
    assert "at 8192 it is 2.50× to 2.50× in bfloat16 and 2.50× to 2.50× in float32" in said
    assert "The smallest speed-up is 0.50× (seq\\_len 1024, d = 64, bfloat16, forward)" in said
    assert "ours is faster in 0 of 12 cells" in said
    assert said.count("### ") == 2
    assert (tmp_path / "figures" / "flash-benchmarking.png").stat().st_size


def test_without_cells_there_is_no_chapter(tmp_path):
    empty = source_of(tmp_path, [])
    for chapter in (flash.benchmarking, flash.leaderboard):
        with pytest.raises(NotOnFile):
            chapter(empty, tmp_path)


def test_the_committed_grid_is_whole(committed_source):
    assert FLASH.missing(committed_source) == []
    assert len(FLASH.asked) == 10 * 4 * 2 * 3 * 2


def test_every_claim_has_a_number_or_the_command_that_makes_it(committed_source, tmp_path):
    full = claims.chapter(committed_source)
    assert full.count("not measured: on that GPU `asv run") == full.count("not measured") == 2
    empty = claims.chapter(source_of(tmp_path, []))
    assert empty.count("not measured") == len(claims.CLAIMS)


def test_a_claim_is_held_against_the_cells(tmp_path):
    cells = [cell("triton", 0.002), cell("reference", 0.006)]
    cells += [cell("triton", 100.0, quantity="peak_memory"), cell("reference", 450.0, quantity="peak_memory")]
    said = claims.chapter(source_of(tmp_path, cells))
    assert "3.00× to 3.00× the speed, memory 4.50× to 4.50× less" in said
