import pytest

from perf.site.attention import rows
from perf.site.estimate import Estimate
from tests.site.cases import case


def compared(row: rows.AttentionRow) -> dict[str, tuple[float, str] | None]:
    return {peer: one.ratio and (one.ratio.value, one.ratio.verdict) for peer, one in row.speedups.items()}


def test_a_first_call_has_neither_a_rate_nor_a_ceiling() -> None:
    [row], _ = rows.build_rows([case(clock="first_call")], "triton")
    assert row.figure is not None
    assert (row.flops_per_s, row.ceiling) == (None, None)


def test_memory_is_compared_to_the_byte() -> None:
    results = [case(), case("sdpa", peak_bytes=2048), case("reference", status="error"), case("flex", peak_bytes=1024)]
    [row], _ = rows.build_rows(results, "triton", "memory")
    assert row.figure == Estimate(1024, 1024, 1024)
    assert (row.flops_per_s, row.ceiling) == (None, None)
    assert compared(row) | {"fastest": None} == {
        "fastest": None,
        "reference": None,
        "sdpa": (2.0, "better"),
        "flex": (1.0, "even"),
    }


def test_speedups_and_the_fastest_peer() -> None:
    [row], peers = rows.build_rows(
        [
            case(),
            case("sdpa", ((0.8,) * 4,) * 3),
            case("reference", ((4.0,) * 4,) * 3),
            case("flex", (), status="error"),
        ],
        "triton",
    )
    assert peers == ["fastest", "reference", "sdpa", "flex"]
    assert compared(row) == {
        "reference": (4.0, "better"),
        "sdpa": (0.8, "worse"),
        "flex": None,
        "fastest": (0.8, "worse"),
    }


def test_touching_intervals_are_no_verdict() -> None:
    wide = ((0.9,) * 4, (1.0,) * 4, (1.1,) * 4)
    [row], peers = rows.build_rows([case(visits=wide), case("sdpa", ((1.01,) * 4,) * 3)], "triton")
    assert peers == ["sdpa"], "one peer is the fastest without saying so"
    assert compared(row)["sdpa"] == (pytest.approx(1.01), "even")


def test_the_interval_of_a_speedup_has_both_arms_and_that_of_a_mean_all_cases() -> None:
    wide = ((0.9,) * 4, (1.0,) * 4, (1.1,) * 4)
    [row], _ = rows.build_rows([case(visits=wide), case("sdpa", wide)], "triton")
    mine = row.figure.high / row.figure.median - 1 if row.figure else 0.0
    speedup, found = row.speedups["sdpa"].ratio, rows.overview([row] * 4, "sdpa")
    assert speedup and speedup.half == pytest.approx(2**0.5 * mine) and mine > 0
    assert found and found.mean.half == pytest.approx(speedup.half / 2)


def test_ours_without_a_time_leaves_the_row() -> None:
    built, _ = rows.build_rows([case(visits=(), status="wrong"), case("sdpa")], "triton")
    assert built[0].ours is not None
    assert built[0].figure is None
    assert built[0].speedups["sdpa"].ratio is None
    assert rows.overview(built, "sdpa") is None


def test_rows_are_in_reading_order_and_the_overview_is_geometric() -> None:
    shapes = [(256, "forward", 2.0), (128, "forward", 2.0), (128, "backward", 16.0), (256, "backward", 16.0)]
    results = []
    for seq_len, mode, slow in shapes:
        params = {"seq_len": seq_len, "mode": mode}
        results += [case(params=params), case("sdpa", ((slow,) * 4,) * 3, params=params)]
    built, _ = rows.build_rows(results, "triton")
    assert [(dict(row.config)["mode"], dict(row.config)["seq_len"]) for row in built] == [
        ("forward", 128),
        ("forward", 256),
        ("backward", 128),
        ("backward", 256),
    ]
    whole = rows.overview(built, "sdpa")
    assert whole is not None
    assert (whole.cases, whole.low, whole.high, whole.better) == (4, 2.0, 16.0, 4)
    assert whole.mean.value == pytest.approx(32**0.5)
