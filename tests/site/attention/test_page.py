"""The page as text, from records in the harness's own format."""

import re
from pathlib import Path

import pytest

from perf import units
from perf.site.pages import permalink
from tests.site import synthetic
from tests.site.attention.made_up import page_of
from tests.site.pages import text_of


def test_every_case_has_a_row_with_its_numbers(tmp_path: Path) -> None:
    suite = synthetic.GPU
    page = page_of(suite, tmp_path)
    tables = "".join(re.findall(r'<table class="cases">.*?</table>', page, flags=re.DOTALL))
    rows = re.findall(r'<tr>\s*<th scope="row".*?</tr>', tables, flags=re.DOTALL)
    ours = [params for params in synthetic.cases(suite) if params["impl"] == "triton"]
    assert len(rows) == len(ours)
    timed = [row for row in rows if "track_time" in row]
    assert len(timed) == sum(synthetic.failure(params)[0] == "ok" for params in ours)
    for row in timed:
        assert re.search(r"\d (ns|µs|ms|s)\b", text_of(row))
        assert re.search(r"\d (GiB|MiB|KiB)\b", text_of(row))
        assert re.search(r"\d %", text_of(row))
        assert text_of(row).count("\u00d7") == 2


def test_a_failure_of_ours_is_told_and_its_reason_cannot_inject(tmp_path: Path) -> None:
    page = page_of(synthetic.GPU, tmp_path)
    text = text_of(page)
    assert "3 of 36 cases have no time" in text
    assert "Triton wrong out: error 0.31 above 0.02 <script>alert(1)</script> 3" in text
    assert "seq_len 16384; d 128; dtype float32" in text
    assert "<script>alert" not in page


def test_peers_that_are_missing_or_fail_have_words(tmp_path: Path) -> None:
    axes = synthetic.GPU_AXES | {"seq_len": [65536], "impl": ["triton", "reference", "sdpa_flash"]}
    suite = synthetic.Suite(synthetic.H200, "attention.FlashAttention", axes, True)
    text = text_of(page_of(suite, tmp_path))
    assert "eager PyTorch out of memory tried to allocate 16.00 GiB with 9.12 GiB free 12 every case" in text
    assert "SDPA flash unavailable FlashAttention only supports fp16 and bf16 6 dtype float32" in text
    assert "OOM" in text
    assert "eager PyTorch no case in common" in text


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
        (units.seconds_together([0.0, 1.23e-3])[1], "1.230 ms"),
        (units.rate(2.5e15), "2500 TFLOP/s"),
    ],
)
def test_units(text: str, expected: str) -> None:
    assert text == expected
