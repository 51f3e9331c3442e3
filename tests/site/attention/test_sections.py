"""Each kind of class has its kind of section: many cases, a few, one, memory alone, the first call."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from perf.harness.case import ClockName
from perf.selection import asv_classes
from perf.site.attention.catalogue import SECTIONS
from perf.site.attention.collected import Machine, Measured
from perf.site.attention.page import _headline, render
from perf.site.attention.rows import Overview
from perf.site.conditions import CLOCKS
from perf.site.pages import Commit
from perf.site.wording import LABELS
from tests.site import synthetic
from tests.site.attention.made_up import COMMIT, measured, page_of
from tests.site.pages import text_of
from tests.site.synthetic import H200


def rungs(page: str) -> list[list[str]]:
    """Names of the implementations in each table of all implementations."""
    tables = re.findall(r'<table class="ladder">.*?</table>', page, flags=re.DOTALL)
    return [re.findall(r'<th scope="row">(.*?)</th>', table) for table in tables]


def heads(page: str) -> list[str]:
    """Columns of the table of every case."""
    [table] = re.findall(r'<table class="cases">.*?</table>', page, flags=re.DOTALL)
    return [text_of(head) for head in re.findall(r'<th scope="col".*?</th>', table)]


def test_every_class_of_attention_has_a_section_and_its_implementations_have_names() -> None:
    known = 0
    for name, cls, _ in asv_classes():
        if cls is None or not getattr(cls, "workload", "").startswith("attention"):
            continue
        benchmark = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
        impls = cls.params[cls.param_names.index("impl")]
        assert benchmark in SECTIONS, f"{name}: say in attention.catalogue what {benchmark} is"
        assert SECTIONS[benchmark].ours in impls
        assert hasattr(cls, SECTIONS[benchmark].method), "a class without a time says memory"
        assert set(impls) <= LABELS.keys()
        known += 1
    assert known


def test_many_cases_have_maps_and_what_never_varies_is_said_once(tmp_path: Path) -> None:
    page = page_of(synthetic.MANY_HEADS, tmp_path)
    text = text_of(page)
    assert text.count("tokens 32768, d_model 2048, bfloat16") == 1
    assert heads(page)[:5] == ["seq_len", "d", "is_causal", "mode", "time"]
    captions = re.findall(r"<caption>(.*?)</caption>", page)
    assert set(captions) == {f"{mode}, {mask}" for mode in ("forward", "backward") for mask in ("causal", "no mask")}
    assert re.search(r"1\.18\u00d7 ± [\d.]+ % as fast as SDPA flash", text)
    assert not rungs(page)


def test_one_case_has_all_implementations_side_by_side_and_no_map(tmp_path: Path) -> None:
    page = page_of(synthetic.LEADERBOARD, tmp_path)
    assert rungs(page) == [["Triton", "compiled Triton", "SDPA flash", "SDPA cuDNN", "FlexAttention"]]
    assert 'class="map"' not in page
    assert 'class="cases"' not in page
    text = text_of(page)
    assert re.search(r"Our compiled Triton attention takes \d+ µs : ", text)
    assert "num_heads 16, seq_len 16384, d 64, bfloat16" in text
    assert "mean" not in text, "of one case there is nothing to average"
    assert "fastest peer" not in text, "that would be another of ours"
    assert re.search(r"compiled Triton 302 µs 0.9 % 398 TFLOP/s 50 % 28.0 MiB", text)
    for method in ("track_time", "track_peak_memory"):
        impls = re.findall(rf"attention.Leaderboard.{method}\?[^\"]*p-impl=%27(\w+)%27", page)
        assert set(impls) == set(synthetic.LEADERBOARD.axes["impl"]), "every implementation opens its own history"


def test_an_implementation_alone_has_no_column_of_ratios(tmp_path: Path) -> None:
    page = page_of(synthetic.ALONE, tmp_path)
    assert rungs(page) == [["tiled PyTorch"]]
    assert re.search(r"Our tiled PyTorch attention takes [\d.]+ ms \.", text_of(page))
    assert "\u00d7" not in text_of(page)


def test_a_class_without_an_implementation_of_ours_claims_none(tmp_path: Path) -> None:
    text = text_of(page_of(synthetic.COMPILED, tmp_path))
    assert re.search(r"Compiled eager attention is \d\.\d+\u00d7 ± [\d.]+ % as fast as eager PyTorch \(geo", text)
    assert "Every case of compiled eager attention" in text
    assert not re.search(r"\bours?\b", text, re.IGNORECASE)


def test_a_few_cases_stand_one_by_one_and_their_steps_are_in_order(tmp_path: Path) -> None:
    page = page_of(synthetic.VARIANTS, tmp_path)
    steps = ["eager PyTorch", "compiled eager", "tiled PyTorch", "tiled PyTorch, compiled backward"]
    steps += ["Triton forward, compiled backward", "Triton", "SDPA"]
    assert rungs(page) == [steps] * 8
    assert "seq_len 8192, float32, backward" in text_of(page)


def test_an_implementation_without_a_time_keeps_its_rung(tmp_path: Path) -> None:
    axes = synthetic.FIRST_CALL.axes | {"dtype": ["float32"]}
    page = page_of(dataclasses.replace(synthetic.FIRST_CALL, axes=axes), tmp_path)
    assert "SDPA flash not available FlexAttention" in text_of(page)
    assert len(rungs(page)[0]) == 6


def test_a_class_without_a_time_shows_memory_beside_its_peers(tmp_path: Path) -> None:
    page = page_of(synthetic.SAVED, tmp_path)
    text = text_of(page)
    assert "Eager PyTorch needs 2.00\u00d7 the memory of compiled eager (geometric mean over seq_len" in text
    assert "256 to 4096, d 16 to 64)." in text
    assert "less in 9, more in 0 of 9" in text
    assert heads(page) == ["seq_len", "d", "memory", "\u00d7 eager PyTorch"]
    assert "4096 16 64.0 MiB 2.00\u00d7" in text
    assert "track_peak_memory" in page
    for absent in ("track_time", "A time is", "Ceilings", "of ceiling", "FLOP/s", " µs", " ms", "faster"):
        assert absent not in text + page.partition("<main")[2].partition("<script>")[0], absent


def test_a_ratio_of_memory_that_rounds_to_one_is_no_ratio() -> None:
    one, two = (Overview(9, ratio, 0.01, ratio, ratio, 0, 0) for ratio in (1.004, 2.0))
    overviews = {"reference": one, "sdpa": two}
    known = SECTIONS["attention.PyTorchAttentionSaved"]
    assert [ratio for ratio, _ in _headline(overviews, True, known)] == ["", "2.00\u00d7"]
    known = SECTIONS["attention.FlashAttention"]
    assert [ratio for ratio, _ in _headline(overviews, True, known)] == [
        "1.00\u00d7 ± 1.0\u00a0%",
        "2.00\u00d7 ± 1.0\u00a0%",
    ]


def test_a_first_call_is_no_roofline(tmp_path: Path) -> None:
    page = page_of(synthetic.FIRST_CALL, tmp_path)
    text = text_of(page)
    assert "the first call in a fresh process with empty compiler caches" in text
    assert "Our Triton attention takes" in text
    for absent in ("ceiling", "FLOP/s", "L2"):
        assert absent not in text.partition("The wait for the first result")[2], absent


def test_every_clock_has_words() -> None:
    assert CLOCKS.keys() == set(get_args(ClockName))


def test_a_clock_of_its_own_is_named_with_its_cache(tmp_path: Path) -> None:
    text = text_of(page_of(synthetic.SHORT, tmp_path))
    assert "in 3 visits, CUDA graph of many calls in a row, over their number, warm caches" in text


@pytest.fixture
def several(tmp_path: Path) -> list[Measured]:
    return [measured(suite, tmp_path) for suite in (synthetic.GPU, synthetic.SAVED, synthetic.FIRST_CALL)]


def test_several_sections_have_contents_that_say_the_result(several: list[Measured]) -> None:
    page = render("demo", [Machine(H200, several)], "")
    [contents] = re.findall(r'<nav class="contents".*?</nav>', page, flags=re.DOTALL)
    for target in re.findall(r'href="#(.*?)"', contents):
        assert page.count(f'id="{target}"') == 1
    assert "eager PyTorch needs 2.00\u00d7 the memory" in text_of(contents)
    assert "One causal head, every shape 6.51\u00d7 ± " in text_of(contents)
    assert 'class="contents"' not in render("demo", [Machine(H200, several[:1])], "")
    assert len(set(idents := re.findall(r' id="(.*?)"', page))) == len(idents)


def test_what_holds_for_all_sections_of_a_machine_is_said_once(several: list[Measured]) -> None:
    text = text_of(render("demo", [Machine(H200, several)], ""))
    for once in ("Driver 580.95.05", "Tile <sizes>", "Interval 95 %", "Ceilings bfloat16"):
        assert text.count(once) == 1, once
    assert text.count("A time is") == 2

    newer = Commit("f" * 40, "Newer", "2026-01-03")
    mixed = [several[0], dataclasses.replace(several[1], commit=newer)]
    text = text_of(render("demo", [Machine(H200, mixed)], ""))
    assert text.index(COMMIT.hash[:8]) < text.index("Every case of our Triton attention") < text.index("Newer")
