"""A bucket sweep as a picture, with places worked out by hand."""

from pathlib import Path

import pytest

from perf.site.distributed.bucket_picture import picture
from perf.site.distributed.rows import SWEEPS, Group, groups_of, model_of
from perf.site.newest import cells_of, read_commit
from tests.site import steps
from tests.site.distributed import made_up as parallel
from tests.site.synthetic import H200


def sweep_of(directory: Path) -> Group:
    steps.write_records(directory, parallel.sweep())
    (sweep,) = groups_of(cells_of([(steps.COMMIT.hash, read_commit(directory, H200, steps.COMMIT.hash))])[SWEEPS[0]])
    return sweep


def test_marks_intervals_curve_and_optimum_lie_where_they_should(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    drawn = picture(sweep, model_of(sweep), lambda row: f"#{row.name}-{row.bucket_size_mb}")
    assert drawn is not None
    assert [text for text, _ in drawn["across"]] == ["1", "10", "100", "1000"]
    assert [text for text, _ in drawn["up"]] == ["0", "2", "4", "6", "8", "10"]
    ours = next(mark for mark in drawn["marks"] if mark["href"] == "#bucketed-100")
    torch = next(mark for mark in drawn["marks"] if mark["href"] == "#torch-100")
    half = 4.303 * 0.1 / 3**0.5
    assert (ours["y"], ours["high"], ours["low"]) == pytest.approx(
        (100 - 10 * 2.1, 100 - 10 * (2.1 + half), 100 - 10 * (2.1 - half)), abs=0.02
    )
    assert torch["x"] == pytest.approx(66.67), "100 MiB, of 1 to 1000"
    assert ours["x"] < torch["x"], "80 buckets of 95.4 MiB"
    assert drawn["best"] == pytest.approx(74.4, abs=0.05), "170.6 MiB"
    curve = [tuple(map(float, point.split(","))) for point in drawn["curve"].split()]
    assert curve[0][0] == min(mark["x"] for mark in drawn["marks"] if mark["kind"] == "ours")
    lowest = max(curve, key=lambda point: point[1])
    assert lowest == pytest.approx((drawn["best"], 100 - 10 * 1.789), abs=1)


def test_nothing_exposed_is_no_picture(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    assert picture(Group(sweep.where, []), None, lambda row: "") is None
    without = picture(sweep, None, lambda row: "")
    assert without is not None
    assert (without["curve"], without["best"]) == ("", None)
