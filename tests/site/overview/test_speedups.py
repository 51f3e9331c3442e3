"""The overview's picture: ratios over the fastest peer, and what their intervals leave."""

from perf.site.attention.collected import Measured
from perf.site.overview.page import MachineOverview, render
from perf.site.overview.speedups import BENCHMARK, picture
from perf.site.pages import Commit
from tests.site.cases import case
from tests.site.changes.made_up import machine_of
from tests.site.pages import text_of


def cell(impl: str, seconds: float, seq_len: int, mode: str = "forward", is_causal: bool = True, spread: float = 0.0):
    params = {"seq_len": seq_len, "mode": mode, "is_causal": is_causal}
    visits = tuple((seconds * factor,) * 4 for factor in (1 - spread, 1.0, 1 + spread))
    return case(impl, visits, params=params, benchmark=BENCHMARK)


def measured(*results, benchmark: str = BENCHMARK) -> list[Measured]:
    return [Measured("h200", benchmark, Commit("a" * 40, "s", "2026-01-02"), list(results), frozenset())]


GRID = [
    *(cell("triton", 1.0, 512), cell("sdpa_cudnn", 2.0, 512), cell("flex", 1.5, 512)),
    *(cell("triton", 1.0, 1024), cell("sdpa_cudnn", 0.8, 1024), cell("flex", 3.0, 1024)),
    *(
        cell("triton", 1.0, 512, "backward"),
        cell("sdpa_cudnn", 1.25, 512, "backward"),
        cell("flex", 9.0, 512, "backward"),
    ),
    *(cell("triton", 1.0, 2048, is_causal=False), cell("flex", 5.0, 2048, is_causal=False)),
    *(cell("triton", 1.0, 4096), cell("flex", 1.0, 2048)),
]


def test_each_point_is_the_fastest_peers_time_over_ours() -> None:
    drawn = picture(measured(*GRID))
    titles = {line["name"]: [point["title"] for point in line["points"]] for line in drawn["lines"]}
    assert list(titles) == ["backward, d 64", "forward, d 64"]
    assert titles["backward, d 64"] == ["backward, d 64, 512 keys: 1.25\u00d7 ±\u00a00.0\u00a0% as fast as cuDNN"]
    short, long = titles["forward, d 64"]
    assert "1.50\u00d7" in short
    assert "FlexAttention" in short
    assert "0.80\u00d7" in long
    assert "cuDNN" in long
    above, below = (point["y"] for point in drawn["lines"][1]["points"])
    assert above < drawn["even"] < below, "up is faster"


def test_the_axis_is_as_long_as_the_intervals() -> None:
    assert [tick for tick, _ in picture(measured(*GRID))["up"]] == [
        "0.8\u00d7",
        "0.9\u00d7",
        "1\u00d7",
        "1.2\u00d7",
        "1.5\u00d7",
    ]
    far = picture(measured(cell("triton", 1.0, 512), cell("sdpa_cudnn", 9.0, 512), cell("flex", 9.5, 512)))
    assert [tick for tick, _ in far["up"]] == ["1\u00d7", "2\u00d7", "5\u00d7", "10\u00d7"]


def test_the_interval_holds_what_both_times_leave_open() -> None:
    drawn = picture(
        measured(cell("triton", 1.0, 512, spread=0.1), cell("sdpa_cudnn", 1.0, 512, spread=0.1), cell("flex", 9.0, 512))
    )
    (point,) = drawn["lines"][0]["points"]
    assert point["high"] < point["y"] == drawn["even"] < point["low"]


def test_the_distance_to_cudnn_is_that_of_the_longest_sequence() -> None:
    drawn = picture(measured(*GRID))
    assert drawn["longest"] == 1024
    assert drawn["cudnn"] == [("forward, d 64", "0.80\u00d7 ±\u00a00.0\u00a0%")]
    page = render("demo", [MachineOverview("h200", "", (), (), (), machine_of((), "h200"), speedups=drawn)], "#")
    assert "1024 keys: forward, d 64 0.80\u00d7" in text_of(page)


def test_without_both_sides_there_is_no_picture() -> None:
    assert picture([]) is None
    assert picture(measured(*GRID, benchmark="attention.FlashAttention")) is None
    assert picture(measured(cell("triton", 1.0, 512))) is None
    assert picture(measured(cell("sdpa_cudnn", 1.0, 512), cell("flex", 1.0, 512))) is None
