"""The page as text, from records in the harness's own format."""

import dataclasses
import re
from pathlib import Path

import pytest

from perf import units
from perf.site.attention.collected import Machine
from perf.site.attention.page import render
from perf.site.pages import permalink
from tests.site import synthetic
from tests.site.attention.made_up import measured, page_of
from tests.site.pages import text_of
from tests.site.synthetic import H200


@pytest.fixture(scope="module", params=[synthetic.GPU, synthetic.CPU], ids=["gpu", "cpu"])
def suite(request: pytest.FixtureRequest) -> synthetic.Suite:
    return request.param


@pytest.fixture(scope="module")
def page(suite: synthetic.Suite, tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(suite, tmp_path_factory.mktemp("records"))


def test_the_conditions_are_named(page: str, suite: synthetic.Suite) -> None:
    text = text_of(page)
    named = ["PyTorch 2.11.0", "Tile <sizes>", "2026-01-02", "01234567", "the median of 36 samples in 3 visits"]
    named.append(f"asv run --bench '^{re.escape(suite.benchmark)}\\.' 01234567^!")
    if suite.gpu:
        named += ["NVIDIA H200", "140 GiB", "132 SMs", "580.95.05", "Triton 3.6.0", "CUDA 13.0", "CUDA events"]
        named += ["cold L2", "bfloat16 matmul 800 TFLOP/s", "float32 (TF32) matmul 360 TFLOP/s", "copy 4.20 TB/s"]
    else:
        named += ["Some Laptop CPU", "2 threads", "wall clock", "float32 matmul 300 GFLOP/s"]
    for words in named:
        assert words in text, words
    assert 'href="https://code.example/commit/0123456789' in page


def test_every_case_has_a_row_with_its_numbers(tmp_path: Path) -> None:
    suite = synthetic.GPU
    page = page_of(suite, tmp_path)
    rows = re.findall(r'<tr>\s*<th scope="row" data-value=.*?</tr>', page, flags=re.DOTALL)
    ours = [params for params in synthetic.cases(suite) if params["impl"] == "triton"]
    assert len(rows) == len(ours)
    timed = [row for row in rows if "track_time" in row]
    assert len(timed) == sum(synthetic.failure(params)[0] == "ok" for params in ours)
    for row in timed:
        assert re.search(r"\d (ns|µs|ms|s)\b", text_of(row))
        assert re.search(r"\d (GiB|MiB|KiB)\b", text_of(row))
        assert re.search(r"\d %", text_of(row))
        assert text_of(row).count("\u00d7") == 2


def test_peers_carry_their_names(page: str, suite: synthetic.Suite) -> None:
    text = text_of(page)
    assert "eager PyTorch" in text
    assert "SDPA" in text
    assert ("Speed-up over SDPA" in text) == suite.gpu, "four cases need no heat map"
    assert f"Our {'Triton' if suite.gpu else 'tiled PyTorch'} attention is" in text


def test_a_failure_of_ours_is_told_and_its_reason_cannot_inject(tmp_path: Path) -> None:
    page = page_of(synthetic.GPU, tmp_path)
    text = text_of(page)
    assert "3 of 36 cases have no time" in text
    assert "Triton wrong result out: error 0.31 above 0.02 <script>alert(1)</script> 3" in text
    assert "seq_len 16384; d 128; dtype float32" in text
    assert "<script>alert" not in page


def test_peers_that_are_missing_or_fail_have_words(tmp_path: Path) -> None:
    axes = synthetic.GPU_AXES | {"seq_len": [65536], "impl": ["triton", "reference", "sdpa_flash"]}
    suite = synthetic.Suite(synthetic.H200, "attention.FlashAttention", axes, True)
    text = text_of(page_of(suite, tmp_path))
    assert "eager PyTorch out of memory tried to allocate 16.00 GiB with 9.12 GiB free 12 every case" in text
    assert "SDPA flash not available FlashAttention only supports fp16 and bf16 6 dtype float32" in text
    assert "OOM" in text
    assert "eager PyTorch no case in common" in text


def test_ours_alone_is_a_page_without_comparisons(tmp_path: Path) -> None:
    axes = synthetic.GPU_AXES | {"impl": ["triton"]}
    suite = synthetic.Suite(synthetic.H200, "attention.FlashAttention", axes, True)
    text = text_of(page_of(suite, tmp_path))
    assert "Speed-up" not in text
    assert "TFLOP/s" in text


def test_nothing_that_counts_was_measured(tmp_path: Path) -> None:
    """Only the visit that is thrown away: no case has a time, and the page says so."""
    text = text_of(page_of(synthetic.GPU, tmp_path, visits=1))
    assert "Our Triton attention has no time here" in text
    assert "the run ended before a visit that counts" in text


def test_newer_commits_with_a_few_of_the_cases_are_told(tmp_path: Path) -> None:
    for newer, words in ((1, "1 newer commit has"), (2, "2 newer commits have")):
        one = dataclasses.replace(measured(synthetic.SHORT, tmp_path / words), newer=newer)
        assert words in text_of(render("demo", [Machine(H200, [one])], ""))


def test_silence_is_told_in_words() -> None:
    silent = Machine("nvidia-b200", [], "has no records yet.")
    assert "nvidia-b200 has no records yet." in text_of(render("demo", [silent], ""))
    assert "No machine has measured attention yet." in text_of(render("demo", [], ""))


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//', page)
    assert not re.search(r"@import|url\(", page)


def test_tables_are_real_tables(page: str) -> None:
    assert page.count("<table") == page.count("<caption")
    assert not re.search(r"<th(?![^>]*scope=)[\s>]", page)


def test_a_permalink_selects_the_machine_and_every_parameter() -> None:
    link = permalink("attention.FlashAttention.track_time", "nvidia h200", {"seq_len": 128, "dtype": "bfloat16"})
    assert link == (
        "history.html#attention.FlashAttention.track_time?machine=nvidia%20h200&p-seq_len=128&p-dtype=%27bfloat16%27"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.seconds(1.2345e-3), "1.23 ms"),
        (units.seconds(999.6e-6), "1000 µs"),
        (units.seconds(0.0), "0 ns"),
        (units.memory(3 * 2**29), "1.50 GiB"),
        (units.memory(512), "512 B"),
        (units.rate(8.0e14), "800 TFLOP/s"),
        (units.times(0.8632), "0.86\u00d7"),
        (units.times(0.00448), "0.0045\u00d7"),
        (units.times(0.0999), "0.10\u00d7"),
        (units.times(123.4), "123\u00d7"),
        (units.percent(0.613), "61\u00a0%"),
        (units.percent(0.0049), "0.5\u00a0%"),
        (units.seconds_together([1.2e-6, 1.3e-6])[1], "1.300 µs"),
    ],
)
def test_units(text: str, expected: str) -> None:
    assert text == expected
